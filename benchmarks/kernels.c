/* The SFLCB step of each benchmark case, fused by hand for one core: the limit the compiled JAX step is measured
 * against. Order of updates as in Algorithm 1: multipliers first, then x, y, z and the slacks from the old point.
 * Built with -ffast-math, so that exp, log, sin and cos run four at a time; no infinity is ever touched here. */

#include <math.h>
#include <string.h>

typedef struct {
    double delta, rho1, rho2, eta_x, eta_y, eta_z, eta_u, eta_v;
} Steps;

static inline double clip(double value, double lower, double upper) {
    return value < lower ? lower : value > upper ? upper : value;
}

/* Toy, many starts: f = exp(2 - y) / (2 + cos 6x) + log((4x - 2)^2 + 1) / 2, g = (y - 2x)^2, y <= x, x in [0, 3]. */
void toy(long count, Steps p, long starts, double *restrict x, double *restrict y, double *restrict z,
         double *restrict s_y, double *restrict s_z, double *restrict u, double *restrict v) {
    double cosine[starts], sine[starts];
    for (long t = 0; t < count; t++) {
        /* In loops of their own, or the compiler merges them into a scalar sincos. */
        for (long i = 0; i < starts; i++) cosine[i] = cos(6 * x[i]);
        for (long i = 0; i < starts; i++) sine[i] = sin(6 * x[i]);
        for (long i = 0; i < starts; i++) {
            double residual_y = y[i] - x[i] - s_y[i], residual_z = z[i] - x[i] - s_z[i];
            u[i] += p.eta_u * residual_y;
            v[i] += p.eta_v * residual_z;
            double force_y = u[i] + p.rho1 * residual_y, force_z = v[i] + p.rho2 * residual_z;
            double inverse = 1 / (2 + cosine[i]), bump = exp(2 - y[i]) * inverse, shifted = 4 * x[i] - 2;
            double upper_x = 6 * sine[i] * bump * inverse + 4 * shifted / (shifted * shifted + 1);
            double lower_y = 2 * (y[i] - 2 * x[i]), lower_z = 2 * (z[i] - 2 * x[i]);
            double grad_x = p.delta * upper_x - 2 * (lower_y - lower_z) - force_y + force_z;
            x[i] = clip(x[i] - p.eta_x * grad_x, 0, 3);
            y[i] -= p.eta_y * (lower_y - p.delta * bump + force_y);
            z[i] -= p.eta_z * (lower_z + force_z);
            s_y[i] = fmin(s_y[i] + p.eta_y * force_y, 0);
            s_z[i] = fmin(s_z[i] + p.eta_z * force_z, 0);
        }
    }
}

/* SVM: rows  A y - c <= -1,  f = sum exp(1 - V y) + |c|^2 / 2,  g = |w|^2 / 2 + 0.005 b^2,  y = (w, b).
 * Both matrices are padded with zeros to a compile-time width and to a multiple of four rows. One pass over A a step:
 * four rows at a time serve both systems and both directions while they are in the first-level cache. */
typedef double Four __attribute__((vector_size(32), aligned(8)));
typedef long Lanes __attribute__((vector_size(32)));

static inline Four load(const double *from) { return *(const Four *)from; }
static inline void store(double *to, Four value) { *(Four *)to = value; }

/* The sums of the entries of each argument. */
static inline Four sums(Four a, Four b, Four c, Four d) {
    Four ab = __builtin_shuffle(a, b, (Lanes){0, 4, 2, 6}) + __builtin_shuffle(a, b, (Lanes){1, 5, 3, 7});
    Four cd = __builtin_shuffle(c, d, (Lanes){0, 4, 2, 6}) + __builtin_shuffle(c, d, (Lanes){1, 5, 3, 7});
    return __builtin_shuffle(ab, cd, (Lanes){0, 1, 4, 5}) + __builtin_shuffle(ab, cd, (Lanes){2, 3, 6, 7});
}

static inline __attribute__((always_inline)) void svm_of_width(
    const long width, long count, Steps p, long rows, long held_out, long bias, const double *restrict A,
    const double *restrict V, double *restrict c, double *restrict y, double *restrict z, double *restrict s_y,
    double *restrict s_z, double *restrict u, double *restrict v) {
    for (long t = 0; t < count; t++) {
        double grad_y[width], grad_z[width], fit[width];
        memset(fit, 0, sizeof fit);
        for (long i = 0; i < held_out; i += 4) {
            const double *r0 = V + i * width, *r1 = r0 + width, *r2 = r1 + width, *r3 = r2 + width;
            Four m0 = {0}, m1 = {0}, m2 = {0}, m3 = {0};
            for (long j = 0; j < width; j += 4) {
                Four point = load(y + j);
                m0 += load(r0 + j) * point, m1 += load(r1 + j) * point;
                m2 += load(r2 + j) * point, m3 += load(r3 + j) * point;
            }
            double loss[4];
            store(loss, 1 - sums(m0, m1, m2, m3));
            for (long k = 0; k < 4; k++) loss[k] = exp(loss[k]);
            for (long j = 0; j < width; j += 4)
                store(fit + j, load(fit + j) + loss[0] * load(r0 + j) + loss[1] * load(r1 + j) +
                                   loss[2] * load(r2 + j) + loss[3] * load(r3 + j));
        }
        for (long j = 0; j < width; j++) {
            double weight = j == bias ? 0.01 : 1;
            grad_y[j] = weight * y[j] - p.delta * fit[j];
            grad_z[j] = weight * z[j];
        }
        for (long i = 0; i < rows; i += 4) {
            const double *r0 = A + i * width, *r1 = r0 + width, *r2 = r1 + width, *r3 = r2 + width;
            Four y0 = {0}, y1 = {0}, y2 = {0}, y3 = {0}, z0 = {0}, z1 = {0}, z2 = {0}, z3 = {0};
            for (long j = 0; j < width; j += 4) {
                Four a0 = load(r0 + j), a1 = load(r1 + j), a2 = load(r2 + j), a3 = load(r3 + j);
                Four point_y = load(y + j), point_z = load(z + j);
                y0 += a0 * point_y, y1 += a1 * point_y, y2 += a2 * point_y, y3 += a3 * point_y;
                z0 += a0 * point_z, z1 += a1 * point_z, z2 += a2 * point_z, z3 += a3 * point_z;
            }
            Four x = load(c + i), slack_y = load(s_y + i), slack_z = load(s_z + i);
            Four residual_y = sums(y0, y1, y2, y3) - x - slack_y, residual_z = sums(z0, z1, z2, z3) - x - slack_z;
            Four new_u = load(u + i) + p.eta_u * residual_y, new_v = load(v + i) + p.eta_v * residual_z;
            Four force_y = new_u + p.rho1 * residual_y, force_z = new_v + p.rho2 * residual_z;
            store(u + i, new_u);
            store(v + i, new_v);
            store(c + i, x - p.eta_x * (p.delta * x - force_y + force_z));
            store(s_y + i, slack_y + p.eta_y * force_y);
            store(s_z + i, slack_z + p.eta_z * force_z);
            for (long k = i; k < i + 4; k++) s_y[k] = fmin(s_y[k], -1), s_z[k] = fmin(s_z[k], -1);
            for (long j = 0; j < width; j += 4) {
                Four a0 = load(r0 + j), a1 = load(r1 + j), a2 = load(r2 + j), a3 = load(r3 + j);
                store(grad_y + j, load(grad_y + j) + force_y[0] * a0 + force_y[1] * a1 + force_y[2] * a2 + force_y[3] * a3);
                store(grad_z + j, load(grad_z + j) + force_z[0] * a0 + force_z[1] * a1 + force_z[2] * a2 + force_z[3] * a3);
            }
        }
        for (long j = 0; j < width; j++) {
            y[j] -= p.eta_y * grad_y[j];
            z[j] -= p.eta_z * grad_z[j];
        }
    }
}

/* One function a width, so that the compiler knows it. */
#define SVM(width)                                                                                                     \
    void svm_##width(long count, Steps p, long rows, long held_out, long bias, const double *A, const double *V,       \
                     double *c, double *y, double *z, double *s_y, double *s_z, double *u, double *v) {                \
        svm_of_width(width, count, p, rows, held_out, bias, A, V, c, y, z, s_y, s_z, u, v);                            \
    }
SVM(48)
SVM(204)

/* Network design. Variables and rows are link-major and node-major, OD pairs innermost. The slack of an equality row is
 * the constant 0 and is left out. */
typedef struct {
    long nodes, links, pairs;
    const int *tail, *head, *origin, *destination;
    const double *time, *cost, *demand, *outside, *revenue;
} Network;

typedef struct {
    double *flow, *share, *slack, *capacity_multiplier, *conservation_multiplier;
} System;

/* One system's multipliers, slacks and lower-level variables; returns its capacity forces in `pull`. */
static void network_system(const Network *n, System s, const double *restrict x, double eta, double eta_multiplier,
                           double rho, double delta, double *restrict pull, double *restrict force) {
    const long pairs = n->pairs;
    const double *restrict demand = n->demand;
    memset(force, 0, n->nodes * pairs * sizeof *force);
    for (long l = 0; l < n->links; l++) {
        const double *restrict flow = s.flow + l * pairs;
        double *restrict out = force + n->tail[l] * pairs, *restrict in = force + n->head[l] * pairs, load = 0;
        for (long k = 0; k < pairs; k++) {
            out[k] += flow[k];
            in[k] -= flow[k];
            load += demand[k] * flow[k];
        }
        double residual = load - x[l] - s.slack[l];
        s.capacity_multiplier[l] += eta_multiplier * residual;
        pull[l] = s.capacity_multiplier[l] + rho * residual;
        s.slack[l] = fmin(s.slack[l] + eta * pull[l], 0);
    }
    for (long k = 0; k < pairs; k++) {
        force[n->origin[k] * pairs + k] -= s.share[k];
        force[n->destination[k] * pairs + k] += s.share[k];
    }
    for (long i = 0; i < n->nodes * pairs; i++) {
        double residual = force[i];
        s.conservation_multiplier[i] += eta_multiplier * residual;
        force[i] = s.conservation_multiplier[i] + rho * residual;
    }
    for (long l = 0; l < n->links; l++) {
        double *restrict flow = s.flow + l * pairs, cost = n->time[l] + pull[l];
        const double *restrict out = force + n->tail[l] * pairs, *restrict in = force + n->head[l] * pairs;
        for (long k = 0; k < pairs; k++) flow[k] = clip(flow[k] - eta * (demand[k] * cost + out[k] - in[k]), 0, 1);
    }
    double along[pairs];
    for (long k = 0; k < pairs; k++)
        along[k] = force[n->destination[k] * pairs + k] - force[n->origin[k] * pairs + k];
    for (long k = 0; k < pairs; k++) {
        double entropy = log(s.share[k] / (1 - s.share[k])) - n->outside[k];
        double grad = demand[k] * entropy - delta * n->revenue[k] + along[k];
        s.share[k] = clip(s.share[k] - eta * grad, 1e-6, 1 - 1e-6);
    }
}

void network(long count, Steps p, Network n, double *restrict x, System y, System z, double *restrict work) {
    double *pull_y = work, *pull_z = work + n.links, *force = work + 2 * n.links;
    for (long t = 0; t < count; t++) {
        network_system(&n, y, x, p.eta_y, p.eta_u, p.rho1, p.delta, pull_y, force);
        network_system(&n, z, x, p.eta_z, p.eta_v, p.rho2, 0, pull_z, force);
        for (long l = 0; l < n.links; l++)
            x[l] = fmax(x[l] - p.eta_x * (p.delta * n.cost[l] - pull_y[l] + pull_z[l]), 0);
    }
}
