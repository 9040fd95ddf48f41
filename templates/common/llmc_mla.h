/* In which form a sequence's rows attend over latents: one rule for all steps of latent attention,
 * on every target, and the reference. */
#ifndef LLMC_MLA_H
#define LLMC_MLA_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define LLMC_MLA_FN static __device__ __forceinline__
#else
#define LLMC_MLA_FN static inline __attribute__((unused))
#endif

/* where the description asks for the expanded form: single rows too */
enum { MLA_EXPAND_ALWAYS = 1 };

/* rows of one sequence in this step, behind `before` positions; expand, chosen: the op's
 * attributes; expand 0: never.
 *
 * Expanding makes a key and a value for every position and head, which costs as much as a number of
 * pairs of a row and a position do absorbed more than expanded: `expand` is that number. The step's
 * own positions are free, since absorbing takes the same products for each of its rows. So expanded
 * is cheaper where the pairs, rows * (before + rows / 2), are more than expand * before. A single
 * row is a decode row, absorbed unless the other form is asked for. Where a row of them chooses
 * among its positions, all are absorbed. */
LLMC_MLA_FN int
mla_expanded(int rows, int before, int expand, int chosen)
{
	if (chosen > 0 && before + rows > chosen)
		return 0;
	if (expand == MLA_EXPAND_ALWAYS)
		return 1;
	return expand > 0 && rows > 1 &&
	       (long long)rows * (2LL * before + rows) > 2LL * expand * before;
}

/* On GPUs, the places that the keys and values of a sequence of the step take in those of all
 * sequences, one after the other: its positions in whole tiles, or none. Rounds take so many places
 * at a time. */
enum { MLA_TILE = 128 };

LLMC_MLA_FN int
mla_places(int rows, int before, int expand)
{
	return mla_expanded(rows, before, expand, 0)
	           ? (before + rows + MLA_TILE - 1) / MLA_TILE * MLA_TILE
	           : 0;
}

#endif
