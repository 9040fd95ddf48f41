/* Chunked prefill of recurrent layers, CHUNK positions per chunk. Chunks begin at multiples of
 * CHUNK, wherever a step begins; CHUNK divides a page. If a step covers only part of a chunk, the
 * other rows of the chunk leave the state unchanged. The state at a multiple of CHUNK therefore
 * does not depend on how a prompt was cut into steps, if it was cut at multiples of CHUNK. If it
 * was cut elsewhere, the state differs by rounding. */
#ifndef LLMC_CUDA_SSM_CHUNK_H
#define LLMC_CUDA_SSM_CHUNK_H

#include "cuda/ptx/ptx.h"
#include "cuda/runtime/step.h"

enum { CHUNK = 32 };

/* Part of a chunk that is in the step: local rows [from, to) of the chunk. Local row `from` is row
 * `row` of the step. */
struct chunk_part {
	int row, from, to;
};

DEV int
chunk_count(const llmc_step &s, int q)
{
	const int first = s.q_start[q], pos = s.pos[first];
	return (pos + s.q_start[q + 1] - first - 1) / CHUNK - pos / CHUNK + 1;
}

/* Returns the part of chunk i of sequence q in this step. */
DEV chunk_part
chunk_part_of(const llmc_step &s, int q, int i)
{
	const int first = s.q_start[q], pos = s.pos[first], end = pos + s.q_start[q + 1] - first,
	          at = (pos / CHUNK + i) * CHUNK;
	const int begin = max(at, pos);
	return { first + begin - pos, begin - at, min(end - at, (int)CHUNK) };
}

/* Calls run(part, 0 .. each - 1) for each chunk of the sequences after the first n_dec. The calls
 * are distributed over the CTAs of the grid. */
template <class Run> DEV void
chunk_schedule(const llmc_step &s, int n_dec, int n_seq, int each, Run run)
{
	int q = n_dec, before = 0, count = n_dec < n_seq ? chunk_count(s, n_dec) : 0;

	for (int i = blockIdx.x; q < n_seq; i += gridDim.x) {
		while (q < n_seq && i / each - before >= count) {
			before += count;
			count = ++q < n_seq ? chunk_count(s, q) : 0;
		}
		if (q < n_seq)
			run(chunk_part_of(s, q, i / each - before), i % each);
	}
}

#endif
