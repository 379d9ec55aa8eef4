"""Every iterate, with options that show."""

from superadam import iterates

ITERATES = {
    "schedule-free": iterates.ScheduleFree(warmup=7),
    "generalised primal averaging": iterates.ScheduleFree(beta=0.7, weight=0.03),
    "averaged": iterates.Averaged(0.9),
    "lookahead": iterates.Lookahead(every=3, share=0.4),
    "ahead": iterates.Nigt(),
}
