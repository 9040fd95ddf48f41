/* A follower with a faulty rank 0: every record and every array that is impossible in the
 * follower's session is an error, and no memory is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/ranks_internal.h"
#include "tests/unit/scripted_comm.h"
#include "tests/unit/tiny_plan.h"

enum { CONTEXT = 128, SEQS = 3, CHUNK_TOKENS = 40, MOST_MESSAGES = 8 };

static Arena arena;
static Plan *plan;
static Runtime *rt;

static int
set_up(void **state)
{
	const RuntimeOptions o = { .random_weights = true, .n_threads = 1 };

	(void)state;
	arena_init(&arena);
	if (setjmp(arena.oom))
		return 1;
	return plan_read(tiny_plan, sizeof tiny_plan - 1, "tiny", &arena, &plan, NULL) != LLMC_OK ||
	       runtime_open(plan, &o, &rt, NULL) != LLMC_OK;
}

static int
tear_down(void **state)
{
	(void)state;
	runtime_close(rt);
	arena_release(&arena);
	return 0;
}

/* Messages of rank 0 in order, each with the size that the follower is to receive */
typedef struct Script {
	const void *data[MOST_MESSAGES];
	size_t bytes[MOST_MESSAGES], n, at;
} Script;

static bool
next_message(void *user, void *data, size_t n)
{
	Script *s = user;

	if (s->at == s->n)
		return false;
	assert_int_equal(n, s->bytes[s->at]);
	memcpy(data, s->data[s->at++], n);
	return true;
}

static void
say(Script *s, const void *data, size_t bytes)
{
	assert_true(s->n < MOST_MESSAGES);
	s->data[s->n] = data;
	s->bytes[s->n++] = bytes;
}

static Session *
open_follower(ScriptedComm *comm, Script *script)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_error err = { 0 };
	Session *s;

	l.context = CONTEXT;
	l.seqs = SEQS;
	l.chunk = CHUNK_TOKENS;
	l.n_out = 4;
	scripted_open(comm, next_message, script);
	if (session_open_rank(rt, &l, &comm->c, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return s;
}

static llmc_status
follow(Session *s, Script *script, const char *what)
{
	llmc_error err = { 0 };

	script->at = 0;
	((ScriptedComm *)s->comm)->over = false;
	llmc_status status = ranks_follow_session(s, &err);
	if (status != LLMC_OK && !strstr(err.text, what))
		fail_msg("%s: %s", what, err.text);
	script->n = 0;
	return status;
}

static void
records_with_impossible_operands_are_refused(void **state)
{
	static const Record bad[] = {
		{ .kind = -1 },
		{ .kind = 99 },
		{ .kind = RECORD_OPEN },
		{ .kind = RECORD_AGAIN, .a = 2 },
		{ .kind = RECORD_AGAIN, .a = 0 }, /* before any step */
		{ .kind = RECORD_SEQUENCE, .a = SEQS, .b = 9, .more = -1 },
		{ .kind = RECORD_SEQUENCE, .a = -1, .b = 9, .more = -1 },
		{ .kind = RECORD_SEQUENCE, .a = 0, .b = -9, .more = -1 },
		{ .kind = RECORD_SEQUENCE, .a = 0, .b = 9, .more = 0 }, /* no adapter slots */
		{ .kind = RECORD_ADAPTER, .a = 0 },
		{ .kind = RECORD_KV, .a = 1 << 30, .b = -1, .more = KV_PAGE },
		{ .kind = RECORD_KV, .a = -1, .b = -1, .more = KV_PAGE },
		{ .kind = RECORD_KV, .a = 0, .b = -2, .more = KV_PAGE },
		{ .kind = RECORD_KV, .a = SEQS, .b = 0, .more = KV_FORK },
		{ .kind = RECORD_KV, .a = 0, .b = 1 << 20, .more = KV_FORK },
		{ .kind = RECORD_KV, .a = 1000, .b = 0, .more = KV_SNAPSHOT },
		{ .kind = RECORD_KV, .a = 0, .b = -1, .more = KV_RESTORE },
		{ .kind = RECORD_KV, .a = 0, .b = 0, .more = KV_SWAP_OUT }, /* no host pages */
		{ .kind = RECORD_KV, .a = 0, .b = 0, .more = KV_SWAP_IN },
		{ .kind = RECORD_KV, .a = 0, .b = 0, .more = KV_WAIT },
		{ .kind = RECORD_KV, .a = 0, .b = 0, .more = 77 },
		{ .kind = RECORD_READ, .a = -1, .b = -1 },
		{ .kind = RECORD_READ, .a = INT32_MAX, .b = -1 },
		{ .kind = RECORD_WRITE, .a = 0, .b = SEQS },
		{ .kind = RECORD_WRITE, .a = 1, .b = 0, .more = -1 },
	};
	Script script = { 0 };
	ScriptedComm comm;
	Session *s = open_follower(&comm, &script);

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		say(&script, &bad[i], sizeof bad[i]);
		if (follow(s, &script, "rank 1 received") != LLMC_E_CHECK)
			fail_msg("record %zu was accepted", i);
	}
	session_close(s);
}

static void
transfers_with_impossible_pages_or_sizes_are_refused(void **state)
{
	const Record kinds[] = { { .kind = RECORD_READ, .a = 1, .b = -1 },
		                 { .kind = RECORD_WRITE, .a = 1, .b = -1 } };
	Script script = { 0 };
	ScriptedComm comm;
	Session *s = open_follower(&comm, &script);
	const int32_t right = (int32_t)(kv_bytes(plan, 1) / 4), none = -1;
	const struct {
		int32_t floats[2], page;
	} bad[] = { { { right - 1, 0 }, 0 },     { { 0, 0 }, 0 },      { { -right, 0 }, 0 },
		    { { INT32_MAX, 0 }, 0 }, /* would take gigabytes */
		    { { right, INT32_MAX }, 0 }, { { right, 0 }, -1 }, { { right, 0 }, 1 << 24 } };

	(void)state;
	for (size_t k = 0; k < 2; k++)
		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
			say(&script, &kinds[k], sizeof kinds[k]);
			say(&script, bad[i].floats, sizeof bad[i].floats);
			say(&script, &bad[i].page, sizeof bad[i].page);
			say(&script, &none, sizeof none);
			if (follow(s, &script, "rank 1 received") != LLMC_E_CHECK)
				fail_msg("transfer %zu was accepted", i);
			assert_true(comm.over);
		}
	const int32_t floats[2] = { right, 0 }, page = 0;
	float *slots = calloc(2 * (size_t)right, sizeof *slots);
	const Record end = { .kind = RECORD_CLOSE };
	say(&script, &kinds[1], sizeof kinds[1]);
	say(&script, floats, sizeof floats);
	say(&script, &page, sizeof page);
	say(&script, &none, sizeof none);
	say(&script, slots, 2 * (size_t)right * sizeof *slots);
	say(&script, &end, sizeof end);
	assert_int_equal(follow(s, &script, ""), LLMC_OK);
	free(slots);
	session_close(s);
}

/* Fill the step of a prompt of 35 tokens and a decode row of another sequence. */
static void
fill_step(Session *s)
{
	const int32_t n[2] = { 1, 35 }, len[2] = { 33, 35 };
	int32_t row = 0;

	*s->size = (StepSize){ .n_tok = 36, .n_dec = 1, .n_seq = 2, .n_out = 2 };
	for (int32_t i = 0; i < 2; i++) {
		s->q_start[i] = row;
		s->kv_len[i] = len[i];
		s->step_seq[i] = 2 - i;
		s->prefix_len[i] = 0;
		for (int32_t k = 0; k < 2; k++)
			s->block_table[i * s->kv.stride + k] = 2 * i + k;
		for (int32_t k = 0; k < n[i]; k++, row++) {
			s->tok[row] = row % 6;
			s->pos[row] = s->rope_pos[row] = len[i] - n[i] + k;
			s->pos2[row] = 0;
			s->seq_of[row] = i;
		}
		s->out_row[i] = row - 1;
	}
	s->q_start[2] = row;
}

static void
steps_with_impossible_arrays_are_refused(void **state)
{
	Script script = { 0 };
	ScriptedComm comm;
	Session *s = open_follower(&comm, &script);
	const Record step = { .kind = RECORD_STEP, .a = 1 }, end = { .kind = RECORD_CLOSE };
	char *own = malloc((size_t)s->block_bytes);
	int32_t *const field[] = {
		&s->size->n_tok,
		&s->size->n_dec,
		&s->size->n_seq,
		&s->size->n_out,
		&s->q_start[0],
		&s->q_start[1],
		&s->q_start[2],
		&s->kv_len[0],
		&s->kv_len[1],
		&s->prefix_len[1],
		&s->out_row[1],
		&s->step_seq[1],
		&s->tok[35],
		&s->pos[35],
		&s->rope_pos[35],
		&s->pos2[0],
		&s->seq_of[35],
		&s->block_table[1],
		s->block_table + s->kv.stride,
	};
	static const int32_t value[] = { -1, INT32_MIN, INT32_MAX, 1 << 20 };

	(void)state;
	assert_non_null(own);
	for (size_t i = 0; i < sizeof field / sizeof *field; i++)
		for (size_t k = 0; k < sizeof value / sizeof *value; k++) {
			/* positions of RoPE are numbers, not indices */
			if (value[k] > 0 && (field[i] == &s->rope_pos[35] || field[i] == s->pos2))
				continue;
			fill_step(s);
			*field[i] = value[k];
			memcpy(own, s->block, (size_t)s->block_bytes);
			memset(s->block, 0, (size_t)s->block_bytes);
			say(&script, &step, sizeof step);
			say(&script, own, (size_t)s->block_bytes);
			if (follow(s, &script, "a step") != LLMC_E_CHECK)
				fail_msg("field %zu with %d was accepted", i, value[k]);
		}
	fill_step(s);
	memcpy(own, s->block, (size_t)s->block_bytes);
	say(&script, &step, sizeof step);
	say(&script, own, (size_t)s->block_bytes);
	say(&script, &end, sizeof end);
	assert_int_equal(follow(s, &script, ""), LLMC_OK);
	free(own);
	session_close(s);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_with_impossible_operands_are_refused),
		cmocka_unit_test(transfers_with_impossible_pages_or_sizes_are_refused),
		cmocka_unit_test(steps_with_impossible_arrays_are_refused),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
