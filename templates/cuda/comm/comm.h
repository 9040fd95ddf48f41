/* Protocol of collectives over peer memory between the GPUs of one machine. The host includes this
 * file too.
 *
 * Each rank has a window in its own memory: flags and slots that the other ranks write. A message
 * is divided among lanes, one CTA each; lane l of a rank exchanges data only with lane l of the
 * others. A lane sends its share in chunks. For chunk e it
 *
 *    1. writes its x into slot [e & 1][own rank][l] of every other rank (push, because stores
 *       do not wait for the link and loads would)
 *    2. sets flag [own rank][l] there to e, with release at system scope
 *    3. waits until its own flags [k][l] are at e or beyond, with acquire (flags only grow, so
 *       nothing is reset and graphs replay unchanged)
 *    4. adds its own slots in the order of ranks
 *
 * Two slots suffice: a rank that writes chunk e + 2 has seen all flags at e + 1, and a rank that
 * sets a flag to e + 1 has read chunk e. All lanes of all ranks must be resident at the same time,
 * so launches are cooperative. A wait ends early if *end reports that the group has ended.
 *
 * An all-reduce is one-shot, as above, or two-shot. In a two-shot all-reduce, each rank adds a part
 * of the elements. Every rank first sends each other rank the elements that this rank adds; then
 * each rank sends its sums to all. Both variants add in the order of ranks, so the results are
 * bit-identical. */
#ifndef LLMC_CUDA_COMM_COMM_H
#define LLMC_CUDA_COMM_COMM_H

enum {
	LLMC_PEERS = 8,  /* maximum number of ranks */
	LLMC_LANES = 16, /* CTAs per launch */
	LLMC_LANE_THREADS = 256,
	LLMC_LANE_LEAST =
	    1024, /* a lane is added only if every lane then has at least this many elements */
	LLMC_CHUNK = 2048, /* elements per slot */
	LLMC_POLLS = 4096  /* polls of a flag between two polls of *end */
};

typedef struct llmc_peers {
	int rank, ranks;
	unsigned *epoch;            /* [LANES] number of chunks sent per lane, in own memory */
	unsigned *flag[LLMC_PEERS]; /* per rank, in that rank's memory: [ranks, LANES] */
	float
	    *slot[LLMC_PEERS]; /* per rank, in that rank's memory: [2, ranks, LANES, LLMC_CHUNK] */
	const unsigned *end;   /* host memory; not 0 if the group has ended */
	/* [LANES, LLMC_PEERS] host memory: 1 + the step in which this lane stopped waiting for that
	 * rank; 0: no such step */
	unsigned *late;
} llmc_peers;

/* all_reduce: y = ((x_0 + x_1) + x_2 ...) + b + b2 + scale * r, [rows, width]. all_gather: columns
 * first[k] to first[k + 1] of y are the x of rank k, which has shape [rows, first[k + 1] -
 * first[k]]. */
typedef struct llmc_collective {
	const llmc_peers *peers;
	const int *rows;
	const float *x, *b, *b2,
	    *r; /* b and b2 [width], r [rows, width]; NULL if absent; r may be y */
	float *y;
	float scale;
	int width, step; /* step: index of the collective in the plan, for messages */
	int first[LLMC_PEERS + 1];
} llmc_collective;

/* Result of a library's all-gather: [ranks, stride] floats at `from`. llmc_add_ranks processes
 * elements [at, at + n) of an all_reduce, llmc_place_ranks rows [at, at + n) of an all_gather. */
typedef struct llmc_gathered {
	llmc_collective c;
	const float *from;
	long long stride, at;
	int n, ranks;
} llmc_gathered;

#endif
