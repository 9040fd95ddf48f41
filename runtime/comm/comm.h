/* Communication between the ranks of one model: sums and gathers of values within a step, and bytes
 * from rank 0 to the others.
 *
 * Sums are added in the order of ranks, so their bits depend neither on the size of a message nor
 * on the order of arrival: a request's tokens are the same alone, in a batch, or in other chunks.
 * Nothing here depends on sessions or plans. */
#ifndef LLMC_RUNTIME_COMM_H
#define LLMC_RUNTIME_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Comm Comm; /* one rank's endpoint */

/* The topology. Ranks are numbered stage by stage: `team` consecutive ranks form one stage, and sum
 * and gather among themselves; without stages all ranks are one team. A rank has `parts` threads in
 * a step. onward, back: bytes that comm_pipe_send may buffer before the receiver takes them, from a
 * rank to its peer in the next stage, and from the last stage to rank 0. */
typedef struct CommShape {
	int ranks, team, parts;
	size_t onward, back;
} CommShape;

/* Endpoints of ranks that are threads of this process: out [ranks]; close each, in any order. */
llmc_status comm_threads(CommShape shape, Comm **out, llmc_error *err);
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_ranks(const Comm *c);
/* Record where this rank is, for error messages of ranks that wait for it: a layer (-1: none) and
 * an op (ops.h) of a step, counted from 1; op -1: the step is over. One thread. */
void comm_set_position(Comm *c, int64_t step, int layer, int op);

/* y = ((x_0 + x_1) + x_2 ...) + b + b2 + scale * r: [rows, width] of floats; b, b2 [width] and r
 * may be NULL, y may be r. */
typedef struct CommReduce {
	const float *x, *b, *b2, *r;
	float *y, scale;
	int64_t rows, width;
} CommReduce;

/* y[t] = x_0[t], x_1[t] ... concatenated: rows of width columns, divided among the team by
 * op_share(width, unit). y NULL: this rank does not need the result. */
typedef struct CommGather {
	const float *x;
	float *y;
	int64_t rows, width, unit;
} CommGather;

/* Collective of a team: every part (0 <= part < parts) of every rank makes the same call with the
 * same sizes. A part returns when its share of y is written and x may be reused; the parts of a
 * rank write y together. False: the group has ended. */
bool comm_all_reduce(Comm *c, int part, const CommReduce *s);
bool comm_all_gather(Comm *c, int part, const CommGather *j);

/* From one thread of rank 0 to one thread of each other rank. Messages arrive in order, and a
 * receive has the size of its send. A send waits for buffer space, a receive without a time limit.
 * False: the group has ended. */
bool comm_send(Comm *c, const void *data, size_t n);
bool comm_receive(Comm *c, void *data, size_t n);

/* One thread of every rank contributes n bytes, a multiple of 4; rank 0 gets them concatenated in
 * `all` [ranks][n], which is NULL on the others. False: the group has ended. */
bool comm_gather_to_root(Comm *c, const void *data, size_t n, void *all);

/* From each rank to its peer in the next stage, and from the first rank of the last stage to rank
 * 0: bytes in order, one thread on each side. The send returns when the bytes are buffered, and
 * waits for the receiver if the buffer is full. The receive waits without a time limit, on rank 0
 * with one. False: the group has ended. */
bool comm_pipe_send(Comm *c, const void *data, size_t n);
bool comm_pipe_receive(Comm *c, void *data, size_t n);

/* End the group: waiting calls return false on all ranks, and so do all later calls. Any thread. */
void comm_end(Comm *c);
bool comm_ended(const Comm *c);
/* Seconds without a heartbeat after which a rank counts as lost: $LLMC_COMM_TIMEOUT, or 30 */
int comm_timeout(void);
/* For a group that has ended: LLMC_E_DEVICE, with the reason as far as this rank has learned it. */
llmc_status comm_error(const Comm *c, llmc_error *err);

#endif
