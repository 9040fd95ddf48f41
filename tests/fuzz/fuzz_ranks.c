/* Sends arbitrary messages from rank 0 to a follower that runs a small model on the reference. The
 * follower executes each message, or refuses it as impossible.
 *
 * Each byte of the input makes one 32-bit field:
 * the byte minus 24, or for some values the next four bytes. The arrays of a step start as those
 * of a valid step; a byte counts the fields that the input changes. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ranks_internal.h"
#include "tests/unit/scripted_comm.h"
#include "tests/unit/tiny_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIDE = 240, BIAS = 24, MOST_FIELDS = 1 << 16 };

static Plan *plan;
static Runtime *rt;

static void
prepare(void)
{
	static Arena arena;
	const RuntimeOptions o = { .random_weights = true, .n_threads = 1 };
	llmc_error err = { 0 };

	arena_init(&arena);
	if (setjmp(arena.oom) ||
	    plan_read(tiny_plan, sizeof tiny_plan - 1, "tiny", &arena, &plan, &err) != LLMC_OK ||
	    runtime_open(plan, &o, &rt, &err) != LLMC_OK) {
		fprintf(stderr, "fuzz_ranks: %s\n", err.text);
		abort();
	}
}

typedef struct Input {
	const uint8_t *data;
	size_t n;
	Session *s;
} Input;

static int32_t
field(Input *in)
{
	int32_t v = 0;

	if (!in->n)
		return 0;
	uint8_t b = *in->data++;
	in->n--;
	if (b < WIDE || in->n < sizeof v)
		return b - BIAS;
	memcpy(&v, in->data, sizeof v);
	in->data += sizeof v;
	in->n -= sizeof v;
	return v;
}

/* Fills a step with one decode row and a prompt of three tokens. */
static void
valid_step(const Session *s)
{
	*s->size = (StepSize){ .n_tok = 4, .n_dec = 1, .n_seq = 2, .n_out = 1 };
	for (int32_t i = 0; i < 2; i++) {
		s->q_start[i] = i;
		s->kv_len[i] = 4;
		s->step_seq[i] = i;
		s->prefix_len[i] = 0;
		s->block_table[i * s->kv.stride] = i;
	}
	s->q_start[2] = 4;
	for (int32_t row = 0; row < 4; row++) {
		s->tok[row] = row;
		s->pos[row] = s->rope_pos[row] = row ? row : 3;
		s->pos2[row] = 0;
		s->seq_of[row] = row > 0;
	}
	s->out_row[0] = 3;
}

static bool
next_message(void *user, void *data, size_t n)
{
	Input *in = user;

	if (!in->n)
		return false;
	if (data == in->s->block) {
		const size_t fields = n / sizeof(int32_t);
		valid_step(in->s);
		for (int k = field(in); k > 0 && in->n; k--) {
			size_t at = (size_t)(uint32_t)field(in) % fields;
			int32_t v = field(in);
			memcpy((char *)data + at * sizeof v, &v, sizeof v);
		}
		return true;
	}
	memset(data, 0, n);
	for (size_t at = 0; at + sizeof(int32_t) <= n && at < MOST_FIELDS && in->n;
	     at += sizeof(int32_t)) {
		int32_t v = field(in);
		memcpy((char *)data + at, &v, sizeof v);
	}
	return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_error err = { 0 };
	Input in = { data, size, NULL };
	ScriptedComm comm;

	if (!rt)
		prepare();
	l.context = 64;
	l.seqs = 2;
	l.chunk = 8;
	l.n_out = 2;
	scripted_open(&comm, next_message, &in);
	if (session_open_rank(rt, &l, &comm.c, &in.s, &err) != LLMC_OK)
		abort();
	llmc_status status = ranks_follow_session(in.s, &err);
	if (status != LLMC_OK && (!err.text[0] || status == LLMC_E_BUG))
		abort();
	session_close(in.s);
	return 0;
}
