/* What ranks of one model say to each other: sums and joins of their values in a step, and bytes
 * from rank 0 to the others.
 *
 * Sums are added in the order of ranks, so their bits depend neither on the size of a message nor
 * on who came first: a request's tokens are the same alone, in a batch, in other chunks. Nothing
 * here knows sessions or plans. */
#ifndef LLMC_RUNTIME_COMM_H
#define LLMC_RUNTIME_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Comm Comm; /* one rank's end */

/* Who talks to whom. Ranks stand stage by stage: `team` ranks of one stage after the other, which
 * sum and join among themselves; without stages all are one team. A rank has `parts` threads in a
 * step. onward, back: bytes that comm_pipe_send may leave behind before the receiver has come, from
 * a rank to its fellow of the next stage, and from the last stage to rank 0. */
typedef struct CommShape {
	int ranks, team, parts;
	size_t onward, back;
} CommShape;

/* The ends of ranks that are threads of this process: out [ranks], each to be closed, in any order.
 */
llmc_status comm_threads(CommShape shape, Comm **out, llmc_error *err);
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_ranks(const Comm *c);
/* Where this rank is, for those who miss it: a layer (-1: none) and an op (ops.h) of a step,
 * counted from 1; op -1: the step is over. One thread. */
void comm_set_position(Comm *c, int64_t step, int layer, int op);

/* y = ((x_0 + x_1) + x_2 ...) + b + b2 + scale * r: [rows, width] of floats; b, b2 [width] and r
 * may be NULL, y may be r. */
typedef struct CommReduce {
	const float *x, *b, *b2, *r;
	float *y, scale;
	int64_t rows, width;
} CommReduce;

/* y[t] = x_0[t], x_1[t] ... side by side: rows of width columns, dealt to the team by
 * op_share(width, unit). y NULL: not wanted here. */
typedef struct CommGather {
	const float *x;
	float *y;
	int64_t rows, width, unit;
} CommGather;

/* Collective of a team: every part (0 <= part < parts) of every rank of it calls the same with the
 * same sizes; a part returns when what it made of y is there, and x may be written again. The parts
 * of a rank make y together. False: the group has ended. */
bool comm_all_reduce(Comm *c, int part, const CommReduce *s);
bool comm_all_gather(Comm *c, int part, const CommGather *j);

/* From rank 0, one thread, to one thread of each other rank; pieces arrive in order, and a receive
 * has the size of a send. A send waits until there is room, a receive for as long as it takes.
 * False: the group has ended. */
bool comm_send(Comm *c, const void *data, size_t n);
bool comm_receive(Comm *c, void *data, size_t n);

/* From every rank, one thread each: n bytes, a multiple of 4, which lie side by side in `all`
 * [ranks][n] of rank 0; NULL on the others. False: the group has ended. */
bool comm_gather_to_root(Comm *c, const void *data, size_t n, void *all);

/* From each rank to its fellow of the next stage, and from the first rank of the last stage to rank
 * 0: bytes in order, by one thread of either. hand returns once they are on their way, which waits
 * for the receiver where there is no room; take waits for as long as it takes, on rank 0 for a
 * bounded time. False: the group has ended. */
bool comm_pipe_send(Comm *c, const void *data, size_t n);
bool comm_pipe_receive(Comm *c, void *data, size_t n);

/* Ends the group: whoever waits returns false, on all ranks, and so do all calls from now on. Any
 * thread. */
void comm_end(Comm *c);
bool comm_ended(const Comm *c);
/* Seconds until a rank that is not heard of is missed: $LLMC_COMM_TIMEOUT, or 30 */
int comm_timeout(void);
/* Of a group that has ended: LLMC_E_DEVICE, and why as far as this rank knows. */
llmc_status comm_error(const Comm *c, llmc_error *err);

#endif
