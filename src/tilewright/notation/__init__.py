"""Four notations for Computations: tensor expressions, Funcs, md_hom and functional patterns."""
