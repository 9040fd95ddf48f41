/* Ranks that share memory: flags, slots and a ring of bytes in one block.
 *
 * A message goes in pieces through slots. Part p of each rank copies its piece into its slot, raises its flag to the piece's number, waits
 * for the flags of part p of the other ranks, and reads their slots: parts of one number meet each other alone, so no barrier is needed.
 * There are two slots for each, in turn. Whoever writes piece e + 2 has seen all flags at e + 1, and who raises a flag to e + 1 has read
 * piece e.
 *
 * Waiting goes in three stages, as in threads.c: a short spin, a few yields, then sleep on a futex. */
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ops/ops.h"
#include "runtime/comm/comm.h"
#include "runtime/threads/threads.h"

enum { PIECE = 4096, RING = 1 << 18, SPINS = 2000, YIELDS = 64, LOOK_MS = 100 };

/* A number that only grows, written by one thread. Its low half is the futex. */
typedef struct Line {
	_Alignas(64) atomic_ullong at;
	atomic_int sleepers;
} Line;

typedef struct Block {
	int         ranks, parts, spins;
	atomic_int  users;   /* ends that are open */
	atomic_bool ended;
	Line        written; /* bytes that rank 0 has put into the ring */
	char       *ring;    /* [RING] */
	Line       *taken;   /* [ranks] bytes that each has taken out */
	Line       *flag;    /* [ranks][parts] */
	float      *slot;    /* [2][ranks][parts][PIECE] */
} Block;

typedef struct Own { _Alignas(64) uint64_t piece; } Own;

struct Comm {
	Block   *b;
	int      rank;
	uint64_t at;    /* bytes sent, or received */
	Own     *part;  /* [parts] pieces that each part has sent */
};

/* ---------------------------------------------------------------- waiting ---- */

static void
pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void
futex(Line *l, int op, unsigned value, const struct timespec *most)
{
	syscall(SYS_futex, &l->at, op, value, most, NULL, 0);
}

static void
line_set(Line *l, uint64_t v)
{
	atomic_store(&l->at, v);
	/* sequentially consistent against line_wait: either it sees the new number or we see the sleeper */
	if (atomic_load(&l->sleepers) > 0)
		futex(l, FUTEX_WAKE, INT32_MAX, NULL);
}

/* Until the line is at v or beyond. */
static bool
line_wait(Block *b, Line *l, uint64_t v)
{
	const struct timespec look = { .tv_nsec = LOOK_MS * 1000000L };

	for (int i = 0; i < b->spins + YIELDS; i++) {
		if (atomic_load_explicit(&l->at, memory_order_acquire) >= v)
			return !atomic_load_explicit(&b->ended, memory_order_relaxed);
		if (i < b->spins)
			pause_cpu();
		else
			sched_yield();
	}
	atomic_fetch_add(&l->sleepers, 1);
	for (uint64_t now; (now = atomic_load(&l->at)) < v && !atomic_load(&b->ended);)
		futex(l, FUTEX_WAIT, (unsigned)now, &look);
	atomic_fetch_sub(&l->sleepers, 1);
	return !atomic_load(&b->ended);
}

/* ---------------------------------------------------------------- opening ---- */

static size_t
lay_out(Block *b, char *base)
{
	size_t at = (sizeof *b + 63) & ~(size_t)63;
	const size_t n = (size_t)b->ranks, parts = (size_t)b->parts;

	if (base)
		b->taken = (Line *)(base + at);
	at += n * sizeof(Line);
	if (base)
		b->flag = (Line *)(base + at);
	at += n * parts * sizeof(Line);
	if (base)
		b->ring = base + at;
	at += RING;
	if (base)
		b->slot = (float *)(base + at);
	return at + 2 * n * parts * PIECE * sizeof(float);
}

llmc_status
comm_local(int ranks, int parts, Comm **out, llmc_error *err)
{
	Block  head = { .ranks = ranks, .parts = parts };
	size_t bytes = lay_out(&head, NULL);
	char  *memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

	for (int r = 0; r < ranks; r++)
		out[r] = NULL;
	if (!memory)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", ranks);
	memset(memory, 0, bytes);
	Block *b = (Block *)memory;
	b->ranks = ranks;
	b->parts = parts;
	b->spins = (int64_t)ranks * parts > topology_threads() ? 0 : SPINS;
	lay_out(b, memory);
	for (int r = 0; r < ranks; r++) {
		Comm *c = out[r] = calloc(1, sizeof *c);
		if (c)
			c->part = aligned_alloc(64, (size_t)parts * sizeof *c->part);
		if (!c || !c->part) {
			free(c);
			out[r] = NULL;
			for (int k = 0; k < r; k++)
				comm_close(out[k]);
			if (r == 0)
				free(memory);
			return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", ranks);
		}
		memset(c->part, 0, (size_t)parts * sizeof *c->part);
		c->b = b;
		c->rank = r;
		atomic_fetch_add(&b->users, 1);
	}
	return LLMC_OK;
}

void
comm_close(Comm *c)
{
	if (!c)
		return;
	if (atomic_fetch_sub(&c->b->users, 1) == 1)
		free(c->b);
	free(c->part);
	free(c);
}

int
comm_rank(const Comm *c)
{
	return c->rank;
}

int
comm_ranks(const Comm *c)
{
	return c->b->ranks;
}

void
comm_end(Comm *c)
{
	Block *b = c->b;

	atomic_store(&b->ended, true);
	futex(&b->written, FUTEX_WAKE, INT32_MAX, NULL);
	for (int i = 0; i < b->ranks; i++)
		futex(&b->taken[i], FUTEX_WAKE, INT32_MAX, NULL);
	for (int i = 0; i < b->ranks * b->parts; i++)
		futex(&b->flag[i], FUTEX_WAKE, INT32_MAX, NULL);
}

bool
comm_ended(const Comm *c)
{
	return atomic_load(&c->b->ended);
}

/* ---------------------------------------------------------------- in a step ---- */

static float *
slot_of(const Block *b, uint64_t piece, int rank, int part)
{
	return b->slot + ((((piece & 1) * (size_t)b->ranks + (size_t)rank) * (size_t)b->parts) + (size_t)part) * PIECE;
}

/* Put n floats into this part's slot, and wait until all ranks have. */
static bool
exchange(Comm *c, int part, const float *x, int64_t n, uint64_t *piece)
{
	Block *b = c->b;
	const uint64_t e = *piece = ++c->part[part].piece;

	if (n > 0)
		memcpy(slot_of(b, e, c->rank, part), x, (size_t)n * sizeof *x);
	line_set(&b->flag[c->rank * b->parts + part], e);
	for (int k = 0; k < b->ranks; k++)
		if (k != c->rank && !line_wait(b, &b->flag[k * b->parts + part], e))
			return false;
	return true;
}

bool
comm_sum(Comm *c, int part, const CommSum *s)
{
	const Block  *b = c->b;
	const int64_t n = s->rows * s->width, lines = (n + 15) / 16;
	int64_t       at = lines * part / b->parts * 16, end = lines * (part + 1) / b->parts * 16;
	uint64_t      e;

	for (end = end < n ? end : n; at < end; at += PIECE) {
		int64_t count = end - at < PIECE ? end - at : PIECE;
		if (!exchange(c, part, s->x + at, count, &e))
			return false;
		float own[PIECE];
		for (int k = 0; k < b->ranks; k++) {
			const float *x = slot_of(b, e, k, part);
			if (k == 0)
				memcpy(own, x, (size_t)count * sizeof *own);
			for (int64_t i = 0; k > 0 && i < count; i++)
				own[i] += x[i];
		}
		const float *const bias[2] = { s->b, s->b2 };
		for (int j = 0; j < 2; j++)
			for (int64_t i = 0; bias[j] && i < count;) {
				int64_t col = (at + i) % s->width, run = s->width - col < count - i ? s->width - col : count - i;
				for (int64_t q = 0; q < run; q++)
					own[i + q] += bias[j][col + q];
				i += run;
			}
		const float *r = s->r ? s->r + at : NULL;
		float       *y = s->y + at;
		for (int64_t i = 0; i < count; i++)
			y[i] = r ? own[i] + s->scale * r[i] : own[i];
	}
	return true;
}

/* What part p sends of rank k's rows, which lie one after the other */
typedef struct Stream { int64_t first, count, at, end; } Stream;

static Stream
stream(const CommJoin *j, int ranks, int rank, int part, int parts)
{
	Stream s;

	op_share(j->width, j->unit, ranks, rank, &s.first, &s.count);
	s.at = s.count * j->rows * part / parts;
	s.end = s.count * j->rows * (part + 1) / parts;
	return s;
}

bool
comm_join(Comm *c, int part, const CommJoin *j)
{
	const Block *b = c->b;
	int64_t      most = 0;
	uint64_t     e;

	for (int k = 0; k < b->ranks; k++) {
		Stream s = stream(j, b->ranks, k, part, b->parts);
		most = s.end - s.at > most ? s.end - s.at : most;
	}
	for (int64_t from = 0; from < most; from += PIECE) {
		Stream  own = stream(j, b->ranks, c->rank, part, b->parts);
		int64_t left = own.end - own.at - from;
		if (!exchange(c, part, j->x + own.at + from, left < PIECE ? left : PIECE, &e))
			return false;
		for (int k = 0; k < b->ranks && j->y; k++) {
			Stream       s = stream(j, b->ranks, k, part, b->parts);
			const float *x = slot_of(b, e, k, part);
			int64_t      end = s.at + from + PIECE < s.end ? s.at + from + PIECE : s.end;
			for (int64_t i = s.at + from; i < end;) {
				int64_t row = i / s.count, col = i % s.count, run = s.count - col < end - i ? s.count - col : end - i;
				memcpy(j->y + row * j->width + s.first + col, x, (size_t)run * sizeof *x);
				x += run;
				i += run;
			}
		}
	}
	return true;
}

/* ---------------------------------------------------------------- bytes from rank 0 ---- */

bool
comm_send(Comm *c, const void *data, size_t n)
{
	Block      *b = c->b;
	const char *from = data;

	while (n) {
		size_t run = RING - c->at % RING, piece = RING / 2 < run ? RING / 2 : run;
		piece = n < piece ? n : piece;
		for (int k = 1; k < b->ranks; k++)
			if (c->at + piece > RING && !line_wait(b, &b->taken[k], c->at + piece - RING))
				return false;
		memcpy(b->ring + c->at % RING, from, piece);
		c->at += piece;
		line_set(&b->written, c->at);
		from += piece;
		n -= piece;
	}
	return !comm_ended(c);
}

bool
comm_receive(Comm *c, void *data, size_t n)
{
	Block *b = c->b;
	char  *to = data;

	while (n) {
		size_t run = RING - c->at % RING, piece = RING / 2 < run ? RING / 2 : run;
		piece = n < piece ? n : piece;
		if (!line_wait(b, &b->written, c->at + piece))
			return false;
		memcpy(to, b->ring + c->at % RING, piece);
		c->at += piece;
		line_set(&b->taken[c->rank], c->at);
		to += piece;
		n -= piece;
	}
	return true;
}
