"""How the lines of Algorithm 1 run on a batch's gradients: views of the parameters, ways to run, one dispatch."""
