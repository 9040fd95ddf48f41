/* What ranks on GPUs of one machine say to each other in a step: each writes into the others'
 * memory. The host includes this file too.
 *
 * A rank has a window in its own memory: flags and slots that the others fill. A message goes in
 * pieces, which are dealt to lanes, a block each; lane l of one rank meets lane l of the others
 * alone. For piece e the lane
 *
 *     writes its x into slot [e & 1][own rank][l] of every other rank        (push: a store does not wait for the link, a load would)
 *     raises flag [own rank][l] there to e, with release at system scope
 *     waits until its own flags [k][l] are at e or beyond, with acquire      (numbers only grow: nothing is reset, graphs replay as they are)
 *     adds up its own slots in the order of ranks
 *
 * Who writes piece e + 2 has seen all flags at e + 1, and who raises a flag to e + 1 has read piece
 * e: two slots are enough. All lanes of all ranks must be on their GPUs at a time: launches are
 * cooperative. A wait ends early when *end says that the group has ended.
 *
 * A sum goes in one step, as above, or in two, each a piece: a rank writes to each other the
 * elements that that one adds up, then what it has added up itself to all. Either has the order of
 * ranks for each element, so the bits are the same. */
#ifndef LLMC_CUDA_COMM_COMM_H
#define LLMC_CUDA_COMM_COMM_H

enum {
	LLMC_PEERS = 8,  /* ranks, at most */
	LLMC_LANES = 16, /* blocks of a launch */
	LLMC_LANE_THREADS = 256,
	LLMC_LANE_LEAST = 1024, /* elements that a lane takes before the next one gets some */
	LLMC_PIECE = 2048,      /* elements of a slot */
	LLMC_LOOK = 4096        /* looks at a flag between two looks at *end */
};

typedef struct llmc_peers {
	int rank, ranks;
	unsigned *epoch;            /* [LANES] pieces that each lane has sent; own memory */
	unsigned *flag[LLMC_PEERS]; /* [ranks, LANES] of each rank, in its memory */
	float *slot[LLMC_PEERS];    /* [2, ranks, LANES, PIECE] of each rank, in its memory */
	const unsigned *end;        /* the host's: not 0: the group has ended */
	unsigned *late; /* [LANES, LLMC_PEERS] the host's: 1 + the step in which this lane was let
	                   go while it waited for that rank */
} llmc_peers;

/* all_reduce: y = ((x_0 + x_1) + x_2 ...) + b + b2 + scale * r, [rows, width]; all_gather: columns
 * first[k] to first[k + 1] of y are x of rank k, which is [rows, first[k + 1] - first[k]] there. */
typedef struct llmc_collective {
	const llmc_peers *peers;
	const int *rows;
	const float *x, *b, *b2,
	    *r; /* b, b2 [width], r [rows, width], which may be y: NULL where there is none */
	float *y;
	float scale;
	int width, step; /* step: its number in the plan, for messages */
	int first[LLMC_PEERS + 1];
} llmc_collective;

/* What a library has gathered: [ranks, stride] floats at `from`. llmc_add_ranks: elements [at, at +
 * n) of the all_reduce's message; llmc_place_ranks: rows [at, at + n) of the all_gather's. */
typedef struct llmc_gathered {
	llmc_collective c;
	const float *from;
	long long stride, at;
	int n, ranks;
} llmc_gathered;

#endif
