/* What ranks of one model say to each other: sums and joins of their values in a step, and bytes from rank 0 to the others.
 *
 * Sums are added in the order of ranks, so their bits depend neither on the size of a message nor on who came first: a request's tokens
 * are the same alone, in a batch, in other chunks. Nothing here knows sessions or plans. */
#ifndef LLMC_RUNTIME_COMM_H
#define LLMC_RUNTIME_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Comm Comm; /* one rank's end */

/* What comm_hand may leave behind before the receiver has come: bytes from a rank to the next, and from the last to the first. 0, 0: none */
typedef struct CommRoom { size_t onward, back; } CommRoom;

/* The ends of ranks that are threads of this process, with so many threads each: out [ranks], each to be closed, in any order. */
llmc_status comm_local(int ranks, int parts, CommRoom room, Comm **out, llmc_error *err);
void        comm_close(Comm *c);
int         comm_rank(const Comm *c);
int         comm_ranks(const Comm *c);

/* y = ((x_0 + x_1) + x_2 ...) + b + b2 + scale * r: [rows, width] of floats; b, b2 [width] and r may be NULL, y may be r. */
typedef struct CommSum {
	const float *x, *b, *b2, *r;
	float       *y, scale;
	int64_t      rows, width;
} CommSum;

/* y[t] = x_0[t], x_1[t] ... side by side: rows of width columns, dealt to ranks by op_share(width, unit). y NULL: not wanted here. */
typedef struct CommJoin {
	const float *x;
	float       *y;
	int64_t      rows, width, unit;
} CommJoin;

/* Collective: every part (0 <= part < parts) of every rank calls the same with the same sizes; a part returns when what it made of y is
 * there, and x may be written again. The parts of a rank make y together. False: the group has ended. */
bool comm_sum(Comm *c, int part, const CommSum *s);
bool comm_join(Comm *c, int part, const CommJoin *j);

/* From rank 0, one thread, to one thread of each other rank; pieces arrive in order, and a receive has the size of a send. A send waits
 * until there is room, a receive for as long as it takes. False: the group has ended. */
bool comm_send(Comm *c, const void *data, size_t n);
bool comm_receive(Comm *c, void *data, size_t n);

/* From each rank to the next one, and from the last to rank 0: bytes in order, by one thread of either. hand returns once they are on their
 * way, which waits for the receiver where there is no room; take waits for as long as it takes, on rank 0 for a bounded time. False: the
 * group has ended. */
bool comm_hand(Comm *c, const void *data, size_t n);
bool comm_take(Comm *c, void *data, size_t n);

/* Ends the group: whoever waits returns false, on all ranks, and so do all calls from now on. Any thread. */
void comm_end(Comm *c);
bool comm_ended(const Comm *c);
/* Of a group that has ended: LLMC_E_DEVICE, and why as far as this rank knows. */
llmc_status comm_error(const Comm *c, llmc_error *err);

#endif
