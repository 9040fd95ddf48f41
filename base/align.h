/* Rounding up to a multiple. */
#ifndef LLMC_BASE_ALIGN_H
#define LLMC_BASE_ALIGN_H

/* Smallest multiple of `to`, a constant, that is not below n */
#define ALIGN_UP(n, to) (((n) + (to) - 1) / (to) * (to))

#endif
