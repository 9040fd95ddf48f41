/* Between the files of comm/: a rank's end is the first member of what a way of talking keeps. */
#ifndef LLMC_RUNTIME_COMM_INSIDE_H
#define LLMC_RUNTIME_COMM_INSIDE_H

#include "runtime/comm/comm.h"

typedef struct CommWay {
	bool (*sum)(Comm *c, int part, const CommSum *s);
	bool (*join)(Comm *c, int part, const CommJoin *j);
	bool (*send)(Comm *c, const void *data, size_t n);
	bool (*receive)(Comm *c, void *data, size_t n);
	bool (*collect)(Comm *c, const void *data, size_t n, void *all);
	bool (*hand)(Comm *c, const void *data, size_t n);
	bool (*take)(Comm *c, void *data, size_t n);
	void (*end)(Comm *c);
	bool (*ended)(const Comm *c);
	void (*why)(const Comm *c, char *text, size_t n); /* it has ended: why; the same for all ranks that know. Untouched: nobody has said */
	void (*close)(Comm *c);
} CommWay;

struct Comm {
	const CommWay *way;
	int            rank, ranks;
	int            team, first; /* ranks first .. first + team - 1 are those of this stage */
};

static inline Comm
comm_of(const CommWay *way, int rank, CommShape shape)
{
	return (Comm){ way, rank, shape.ranks, shape.team, rank / shape.team * shape.team };
}

/* Who is handed what this rank has made, and by whom it is */
static inline int
comm_after(const Comm *c)
{
	return (c->rank + c->team) % c->ranks;
}

static inline int
comm_before(const Comm *c)
{
	return (c->rank + c->ranks - c->team) % c->ranks;
}

/* sum: elements [at, at + n) of the x of all ranks, added; the other terms are added to it and the result goes to y. */
void comm_finish_sum(const CommSum *s, int64_t at, int64_t n, float *sum);

/* What part p of `parts` sends of the rows of rank k of a team of `ranks`, which lie one after the other: elements [at, end), of rows of `count` columns that begin
 * at column `first` of the whole. */
typedef struct CommStream { int64_t first, count, at, end; } CommStream;
CommStream comm_stream(const CommJoin *j, int ranks, int rank, int part, int parts);
/* Elements [at, end) of rank k's rows, to their places in y. */
void       comm_place(const CommJoin *j, const CommStream *s, int64_t at, int64_t end, const float *x);

/* shared.c: memory of comm_shared_bytes bytes, zero, seen by all ranks, aligned to 64; each makes its end over it. timeout_s:
 * how long a rank may be late in a step; 0: for ever. release(user) is called when the end is closed. */
size_t      comm_shared_bytes(CommShape shape);
llmc_status comm_shared(void *memory, int rank, CommShape shape, int timeout_s, void (*release)(void *user), void *user, Comm **out, llmc_error *err);

#endif
