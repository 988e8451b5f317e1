"""Four ways to write a Computation: tensor expressions, Funcs, md_hom and functional patterns."""
