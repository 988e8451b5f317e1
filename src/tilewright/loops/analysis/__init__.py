"""The analysis of what a loop program reads and writes, when, and in which order.

access      every read and write of a program, with what is known where it is performed
effects     which buffers a statement reads and writes; which updates commute
terms       what an index expression depends on
region      the box of a buffer that a loop touches; what a Store defines before it is read
overlap     the promise that overlapping tiles store equal values
lemmas      which loops must agree wherever two accesses touch one element, by arithmetic
isl         the same question decided exactly, with two iterations as the witness
question    one question, put to the lemmas, and to isl for the pairs that they leave open
dependence  the questions: may loops run together, change places, be parted, be delayed
threads     whether accesses of two threads of a GPU, or of two blocks, touch one element
verdict     the answers: Legal, Illegal with a witness, Unknown with the limit that was hit
"""
