"""Problems with known answers, and problems built from data."""

from bilevax.problems import textbook
from bilevax.problems.network.design import NetworkDesign
from bilevax.problems.quadratic import random_quadratic as quadratic
from bilevax.problems.svm import svm, svm_accuracy, svm_predict
from bilevax.problems.toy import toy

__all__ = ["NetworkDesign", "quadratic", "svm", "svm_accuracy", "svm_predict", "textbook", "toy"]
