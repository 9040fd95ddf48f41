/* Communication between the ranks of one model: sums and gathers of values within a step, and bytes
 * from rank 0 to the others.
 *
 * Terms are added in the order of ranks, so the bits of a sum do not depend on the size of a
 * message or the order of arrival. A request therefore gets the same tokens alone, in a batch, or
 * with other chunk sizes. Nothing here depends on sessions or plans. */
#ifndef LLMC_RUNTIME_COMM_H
#define LLMC_RUNTIME_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Comm Comm; /* one rank's endpoint */

/* Topology of the group. Ranks are numbered stage by stage: `team` consecutive ranks form one
 * stage, and collectives run within a stage. Without stages all ranks are one team. A rank has
 * `parts` threads in a step. comm_pipe_send may buffer `onward` bytes from a rank to its peer in
 * the next stage, and `back` bytes from the last stage to rank 0. */
typedef struct CommShape {
	int ranks, team, parts;
	size_t onward, back;
} CommShape;

/* Create endpoints out [ranks] for ranks that are threads of this process. Close each, in any
 * order. */
llmc_status comm_threads(CommShape shape, Comm **out, llmc_error *err);
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_ranks(const Comm *c);
/* Record the position of this rank, for error messages of ranks that wait for it: step (counted
 * from 1), layer (-1: none) and op (ops.h; -1: the step is over). Call it from one thread. */
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

/* Send from one thread of rank 0 to one thread of each other rank. Messages arrive in order, and a
 * receive has the size of its send. A send waits for buffer space, a receive without a time limit.
 * False: the group has ended. */
bool comm_send(Comm *c, const void *data, size_t n);
bool comm_receive(Comm *c, void *data, size_t n);

/* One thread of every rank contributes n bytes, a multiple of 4; rank 0 gets them concatenated in
 * `all` [ranks][n], which is NULL on the others. False: the group has ended. */
bool comm_gather_to_root(Comm *c, const void *data, size_t n, void *all);

/* Send bytes in order from each rank to its peer in the next stage, and from the first rank of the
 * last stage to rank 0. One thread per side. A send returns when the bytes are buffered; it waits
 * for the receiver if the buffer is full. A receive has a time limit on rank 0 only. False: the
 * group has ended. */
bool comm_pipe_send(Comm *c, const void *data, size_t n);
bool comm_pipe_receive(Comm *c, void *data, size_t n);

/* End the group: waiting calls return false on all ranks, and so do all later calls. Any thread. */
void comm_end(Comm *c);
bool comm_ended(const Comm *c);
/* Seconds without a heartbeat after which a rank counts as lost: $LLMC_COMM_TIMEOUT, or 30 */
int comm_timeout(void);
/* Return LLMC_E_DEVICE for a group that has ended, with the reason if this rank has received it. */
llmc_status comm_error(const Comm *c, llmc_error *err);

#endif
