"""One run in its folder: training that can be stopped and resumed, on one process or several."""
