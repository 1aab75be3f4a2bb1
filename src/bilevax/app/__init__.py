"""What people look at: command line, report, plots, demonstration, experiments."""
