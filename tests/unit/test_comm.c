/* Ranks over shared memory: all-reduces against additions in rank order, bit for bit; all-gathers
 * of uneven shares; bytes in order, and around a ring; stages of several ranks; the end of a group
 * while a rank waits. The reference's communication ops are tested in the same way. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/ops.h"
#include "ref/ref.h"
#include "runtime/comm/comm.h"

enum { RANKS = 6, PARTS = 3 };

typedef struct Case {
	int ranks, parts;
	int64_t rows, width, unit;
	bool b, b2, r, same; /* same: y is r's memory */
	Comm *comm[RANKS];
	float *x[RANKS], *y[RANKS], *res[RANKS], *bias, *bias2;
	int rounds;
} Case;

typedef struct Thread {
	Case *c;
	int rank, part;
	pthread_t id;
	bool ok;
} Thread;

/* Numbers whose sum depends on the order of additions. */
static float
noise(uint64_t i)
{
	i = (i + 1) * 0x9e3779b97f4a7c15u;
	i ^= i >> 29;
	return (float)((double)(int64_t)(i * 0xbf58476d1ce4e5b9u) / 9e18) * (float)(1 << (i % 20));
}

static void
run_threads(Case *c, void *(*fn)(void *))
{
	Thread t[RANKS * PARTS];
	int n = 0;

	for (int r = 0; r < c->ranks; r++)
		for (int p = 0; p < c->parts; p++, n++) {
			t[n] = (Thread){ .c = c, .rank = r, .part = p };
			assert_int_equal(pthread_create(&t[n].id, NULL, fn, &t[n]), 0);
		}
	for (int i = 0; i < n; i++) {
		pthread_join(t[i].id, NULL);
		assert_true(t[i].ok);
	}
}

static void *
sum_main(void *arg)
{
	Thread *t = arg;
	Case *c = t->c;

	t->ok = true;
	for (int i = 0; i < c->rounds && t->ok; i++) {
		CommReduce s = { .x = c->x[t->rank],
			         .b = c->b ? c->bias : NULL,
			         .b2 = c->b2 ? c->bias2 : NULL,
			         .r = c->r ? c->res[t->rank] : NULL,
			         .y = c->same ? c->res[t->rank] : c->y[t->rank],
			         .scale = 0.75f,
			         .rows = c->rows,
			         .width = c->width };
		t->ok = comm_all_reduce(c->comm[t->rank], t->part, &s);
	}
	return NULL;
}

static void
sum_case(int ranks, int parts, int64_t rows, int64_t width, int terms, bool same)
{
	Case c = { .ranks = ranks,
		   .parts = parts,
		   .rows = rows,
		   .width = width,
		   .b = terms > 0,
		   .b2 = terms > 1,
		   .r = terms > 2 || same,
		   .same = same,
		   .rounds = 1 };
	const int64_t n = rows * width;
	llmc_error err;
	float *want = calloc((size_t)n + 1, 4), *scratch = calloc((size_t)(2 * width), 4);

	c.bias = calloc((size_t)width, 4);
	c.bias2 = calloc((size_t)width, 4);
	for (int64_t i = 0; i < width; i++) {
		c.bias[i] = noise((uint64_t)i + 7);
		c.bias2[i] = noise((uint64_t)i + 70000);
	}
	for (int k = 0; k < ranks; k++) {
		c.x[k] = calloc((size_t)n + 1, 4);
		c.y[k] = calloc((size_t)n + 1, 4);
		c.res[k] = calloc((size_t)n + 1, 4);
		for (int64_t i = 0; i < n; i++) {
			c.x[k][i] = noise((uint64_t)(i * RANKS + k));
			c.res[k][i] = noise((uint64_t)i + 1000000);
		}
	}
	for (int64_t i = 0; i < n; i++) {
		want[i] = c.x[0][i];
		for (int k = 1; k < ranks; k++)
			want[i] += c.x[k][i];
		want[i] = c.b ? want[i] + c.bias[i % width] : want[i];
		want[i] = c.b2 ? want[i] + c.bias2[i % width] : want[i];
		want[i] = c.r ? want[i] + 0.75f * c.res[0][i] : want[i];
	}

	/* the ops of the reference interpreter */
	const PlanTensor vector = { .id = "b", .dtype = DT_F32, .rows = width, .layout = "f32" };
	const PlanStep step = { .op = OP_all_reduce,
		                .kernel = -1,
		                .n_attr = 2,
		                .attr = { { .key = "width", .kind = ATTR_INT, .i = width },
		                          { .key = "scale", .kind = ATTR_NUM, .f = 0.75 } } };
	const llmc_step now = { .n_tok = (int32_t)rows };
	const RefArg arg[] = {
		{ .kind = REF_BUFFER, .data = c.x[0] },
		{ .kind = c.b ? REF_TENSOR : REF_NONE, .data = c.bias, .tensor = &vector },
		{ .kind = c.b2 ? REF_TENSOR : REF_NONE, .data = c.bias2, .tensor = &vector },
		{ .kind = c.r ? REF_BUFFER : REF_NONE, .data = c.res[0] },
		{ .kind = REF_BUFFER, .data = c.y[0] }
	};
	ref_find(OP_all_reduce)(&(RefCall){ .step = &step,
	                                    .s = &now,
	                                    .arg = arg,
	                                    .scratch = scratch,
	                                    .n_peer = ranks,
	                                    .peer = (const float *const *)c.x });
	assert_memory_equal(c.y[0], want, (size_t)n * 4);
	memset(c.y[0], 0xff, (size_t)n * 4);

	assert_int_equal(comm_threads((CommShape){ .ranks = ranks, .team = ranks, .parts = parts },
	                              c.comm, &err),
	                 LLMC_OK);
	run_threads(&c, sum_main);
	for (int k = 0; k < ranks; k++) {
		assert_memory_equal(c.same ? c.res[k] : c.y[k], want, (size_t)n * 4);
		comm_close(c.comm[k]);
		free(c.x[k]);
		free(c.y[k]);
		free(c.res[k]);
	}
	free(c.bias);
	free(c.bias2);
	free(want);
	free(scratch);
}

static void
all_reduce_adds_in_rank_order(void **state)
{
	(void)state;
	for (int ranks = 2; ranks < RANKS; ranks++)
		for (int parts = 1; parts <= PARTS; parts++) {
			sum_case(ranks, parts, 1, 576, 0, false);
			sum_case(ranks, parts, 3, 37, 3, false);
			sum_case(ranks, parts, 1, 1, 1, false);
		}
	sum_case(3, 2, 33, 576, 2, true); /* several chunks, in place */
	sum_case(4, 1, 7, 5003, 3, true);
	sum_case(3, 3, 0, 8, 3, false); /* no rows */
}

/* Two slots per part are enough, even if one rank lags as far as possible. */
static void
many_all_reduces_do_not_mix(void **state)
{
	Case c = { .ranks = 4, .parts = 2, .rows = 2, .width = 40, .rounds = 3000 };
	llmc_error err;
	float want[80];

	(void)state;
	for (int k = 0; k < c.ranks; k++) {
		c.x[k] = calloc(80, 4);
		c.y[k] = calloc(80, 4);
		for (int i = 0; i < 80; i++)
			c.x[k][i] = noise((uint64_t)(i + 100 * k));
	}
	for (int i = 0; i < 80; i++) {
		want[i] = c.x[0][i];
		for (int k = 1; k < c.ranks; k++)
			want[i] += c.x[k][i];
	}
	assert_int_equal(
	    comm_threads((CommShape){ .ranks = c.ranks, .team = c.ranks, .parts = c.parts }, c.comm,
	                 &err),
	    LLMC_OK);
	run_threads(&c, sum_main);
	for (int k = 0; k < c.ranks; k++) {
		assert_memory_equal(c.y[k], want, sizeof want);
		comm_close(c.comm[k]);
		free(c.x[k]);
		free(c.y[k]);
	}
}

static void *
join_main(void *arg)
{
	Thread *t = arg;
	Case *c = t->c;

	t->ok = comm_all_gather(c->comm[t->rank], t->part,
	                        &(CommGather){ .x = c->x[t->rank],
	                                       .y = t->rank < 2 ? c->y[t->rank] : NULL,
	                                       .rows = c->rows,
	                                       .width = c->width,
	                                       .unit = c->unit });
	return NULL;
}

static void
join_case(int ranks, int parts, int64_t rows, int64_t width, int64_t unit)
{
	Case c = { .ranks = ranks, .parts = parts, .rows = rows, .width = width, .unit = unit };
	llmc_error err;
	float *want = calloc((size_t)(rows * width) + 1, 4);
	int64_t first, count, at = 0;

	for (int64_t i = 0; i < rows * width; i++)
		want[i] = noise((uint64_t)i);
	for (int k = 0; k < ranks; k++) {
		op_share(width, unit, ranks, k, &first, &count);
		assert_int_equal(first, at);
		at += count;
		c.x[k] = calloc((size_t)(rows * count) + 1, 4);
		c.y[k] = calloc((size_t)(rows * width) + 1, 4);
		for (int64_t t = 0; t < rows; t++)
			memcpy(c.x[k] + t * count, want + t * width + first, (size_t)count * 4);
	}
	assert_int_equal(at, width);

	const PlanStep step = { .op = OP_all_gather,
		                .kernel = -1,
		                .n_attr = 2,
		                .attr = { { .key = "width", .kind = ATTR_INT, .i = width },
		                          { .key = "unit", .kind = ATTR_INT, .i = unit } } };
	const llmc_step now = { .n_tok = (int32_t)rows };
	const RefArg arg[] = { { .kind = REF_BUFFER, .data = c.x[0] },
		               { .kind = REF_BUFFER, .data = c.y[0] } };
	ref_find(OP_all_gather)(&(RefCall){ .step = &step,
	                                    .s = &now,
	                                    .arg = arg,
	                                    .n_peer = ranks,
	                                    .peer = (const float *const *)c.x });
	assert_memory_equal(c.y[0], want, (size_t)(rows * width) * 4);
	memset(c.y[0], 0xff, (size_t)(rows * width) * 4);

	assert_int_equal(comm_threads((CommShape){ .ranks = ranks, .team = ranks, .parts = parts },
	                              c.comm, &err),
	                 LLMC_OK);
	run_threads(&c, join_main);
	for (int k = 0; k < ranks; k++) {
		if (k < 2)
			assert_memory_equal(c.y[k], want, (size_t)(rows * width) * 4);
		comm_close(c.comm[k]);
		free(c.x[k]);
		free(c.y[k]);
	}
	free(want);
}

static void
all_gather_of_uneven_shares(void **state)
{
	(void)state;
	join_case(2, 1, 1, 96, 64);
	join_case(3, 2, 5, 100, 1);
	join_case(3, 3, 1, 49157, 64);
	join_case(5, 2, 3, 5, 1);
	join_case(4, 1, 0, 64, 1);
}

static void *
bytes_main(void *arg)
{
	Thread *t = arg;
	unsigned char *data = malloc(700001);

	t->ok = true;
	for (size_t n = 1, i = 0; n <= 700001 && t->ok; n = n * 3 + 1, i++) {
		for (size_t k = 0; k < n; k++)
			data[k] = t->rank ? 0 : (unsigned char)(k * 31 + i);
		t->ok = t->rank ? comm_receive(t->c->comm[t->rank], data, n)
		                : comm_send(t->c->comm[0], data, n);
		for (size_t k = 0; k < n && t->ok; k++)
			t->ok = data[k] == (unsigned char)(k * 31 + i);
	}
	free(data);
	return NULL;
}

static void
bytes_arrive_in_order(void **state)
{
	Case c = { .ranks = 4, .parts = 1 };
	llmc_error err;

	(void)state;
	assert_int_equal(comm_threads((CommShape){ .ranks = c.ranks, .team = c.ranks, .parts = 1 },
	                              c.comm, &err),
	                 LLMC_OK);
	run_threads(&c, bytes_main);
	for (int k = 0; k < c.ranks; k++)
		comm_close(c.comm[k]);
}

/* Each rank adds one to the value from the previous rank and passes it on. Rank 0 starts the
 * values, and is as far ahead of the last rank as the buffers allow. */
static void *
ring_main(void *arg)
{
	Thread *t = arg;
	enum { ROUNDS = 400, MOST = 900, AHEAD = 5 };
	uint32_t data[MOST];

	t->ok = true;
	for (int i = 0; i < ROUNDS + AHEAD && t->ok; i++) {
		const int in = t->rank ? i : i - AHEAD, n_in = (in * 37) % MOST + 1,
		          n_out = (i * 37) % MOST + 1;
		if (in >= 0 && in < ROUNDS) {
			t->ok = comm_pipe_receive(t->c->comm[t->rank], data,
			                          (size_t)n_in * sizeof *data);
			for (int k = 0; k < n_in && t->ok; k++)
				t->ok = data[k] ==
				        (uint32_t)(in * 1000 + k +
				                   (t->rank ? t->rank - 1 : t->c->ranks - 1));
		}
		if (i >= ROUNDS)
			continue;
		for (int k = 0; k < n_out; k++)
			data[k] = (uint32_t)(i * 1000 + k + t->rank);
		t->ok = t->ok &&
		        comm_pipe_send(t->c->comm[t->rank], data, (size_t)n_out * sizeof *data);
	}
	return NULL;
}

/* Experts are distributed whole: every routed expert is on exactly one rank, under its local
 * index. */
static void
each_routed_expert_belongs_to_one_rank(void **state)
{
	enum { N = 7, TOP_K = 3, RANKS_OF_EXPERTS = 3 };
	int32_t id[2 * TOP_K] = { 6, 0, 3, 2, 4, 5 };
	const llmc_step now = { .n_tok = 2 };
	int seen[2 * TOP_K] = { 0 };

	(void)state;
	for (int r = 0; r < RANKS_OF_EXPERTS; r++) {
		int64_t first, count;
		int32_t own[2 * TOP_K];
		op_share(N, 1, RANKS_OF_EXPERTS, r, &first, &count);
		const PlanStep step = { .op = OP_local_experts,
			                .kernel = -1,
			                .n_attr = 4,
			                .attr = {
			                    { .key = "n_experts", .kind = ATTR_INT, .i = N },
			                    { .key = "top_k", .kind = ATTR_INT, .i = TOP_K },
			                    { .key = "first", .kind = ATTR_INT, .i = first },
			                    { .key = "count", .kind = ATTR_INT, .i = count } } };
		const RefArg arg[] = { { .kind = REF_BUFFER, .data = id },
			               { .kind = REF_BUFFER, .data = own } };
		ref_find(OP_local_experts)(&(RefCall){ .step = &step, .s = &now, .arg = arg });
		for (int i = 0; i < 2 * TOP_K; i++)
			if (own[i] >= 0) {
				assert_true(own[i] < count && own[i] + first == id[i]);
				seen[i]++;
			} else {
				assert_int_equal(own[i], -1);
			}
	}
	for (int i = 0; i < 2 * TOP_K; i++)
		assert_int_equal(seen[i], 1);
}

static void
bytes_travel_round_a_ring(void **state)
{
	llmc_error err;
	/* the op of the reference copies the output of the previous stage */
	const PlanStep step = { .op = OP_stage_in,
		                .kernel = -1,
		                .n_attr = 1,
		                .attr = { { .key = "hidden", .kind = ATTR_INT, .i = 3 } } };
	const llmc_step now = { .n_tok = 2 };
	const float left[6] = { 1, -2, 3, 0.5f, 1e9f, -0.0f }, *const peer[] = { left };
	float y[6] = { 0 };
	const RefArg arg[] = { { .kind = REF_BUFFER, .data = y } };

	(void)state;
	ref_find(OP_stage_in)(
	    &(RefCall){ .step = &step, .s = &now, .arg = arg, .n_peer = 1, .peer = peer });
	assert_memory_equal(y, left, sizeof y);
	/* between two devices the receiver copies too, and the sender does nothing */
	const PlanStep recv = { .op = OP_recv,
		                .kernel = -1,
		                .n_attr = 1,
		                .attr = { { .key = "width", .kind = ATTR_INT, .i = 3 } } };
	memset(y, 0, sizeof y);
	ref_find(OP_recv)(
	    &(RefCall){ .step = &recv, .s = &now, .arg = arg, .n_peer = 1, .peer = peer });
	assert_memory_equal(y, left, sizeof y);
	ref_find(OP_send)(&(RefCall){ .step = &recv, .s = &now, .arg = arg });
	assert_memory_equal(y, left, sizeof y);
	for (int ranks = 2; ranks < 5; ranks++) {
		Case c = { .ranks = ranks, .parts = 1 };
		/* one group's pipes are shorter than a message; the pipes of another hold all data
		 * in flight */
		assert_int_equal(comm_threads((CommShape){ .ranks = c.ranks,
		                                           .team = 1,
		                                           .parts = 1,
		                                           .onward = 1000,
		                                           .back = 32000 },
		                              c.comm, &err),
		                 LLMC_OK);
		run_threads(&c, ring_main);
		for (int k = 0; k < c.ranks; k++)
			comm_close(c.comm[k]);
	}
}

/* Three stages of two ranks. An all-reduce adds the values of the ranks of a stage; each stage runs
 * a different number of all-reduces. The first rank of a stage sends its output to the first rank
 * of the next stage, the second rank to the second one. The last stage sends to rank 0 only. Rank 0
 * gathers from all ranks. */
static void *
stages_main(void *arg)
{
	Thread *t = arg;
	Comm *c = t->c->comm[t->rank];
	const int stage = t->rank / 2;
	float x[37], y[37], got = 0;
	int32_t own[5000], *all = t->rank ? NULL : malloc(sizeof own * (size_t)t->c->ranks);

	t->ok = true;
	for (int round = 0; round < 60 && t->ok; round++) {
		if (stage)
			t->ok = comm_pipe_receive(c, &got, sizeof got) &&
			        got == (float)(round + 10 * (t->rank - 2));
		for (int i = 0; i < 5 + 3 * stage && t->ok; i++) {
			for (int k = 0; k < 37; k++)
				x[k] = (float)(k + t->rank + i);
			t->ok = comm_all_reduce(
			    c, 0, &(CommReduce){ .x = x, .y = y, .rows = 1, .width = 37 });
			for (int k = 0; k < 37; k++)
				t->ok = t->ok && y[k] == (float)(2 * (k + i) + 4 * stage + 1);
		}
		got = (float)(round + 10 * t->rank);
		t->ok = t->ok && (t->rank == 5 || comm_pipe_send(c, &got, sizeof got));
		if (t->rank == 0)
			t->ok = t->ok && comm_pipe_receive(c, &got, sizeof got) &&
			        got == (float)(round + 40);
		const int n = round % 7 ? round * 3 + 1 : 5000;
		for (int k = 0; k < n; k++)
			own[k] = t->rank * 100000 + round + k;
		t->ok = t->ok && comm_gather_to_root(c, own, (size_t)n * sizeof *own, all);
		for (int k = 0; k < n * t->c->ranks && all && t->ok; k++)
			t->ok = all[k] == k / n * 100000 + round + k % n;
	}
	free(all);
	return NULL;
}

static void
stages_of_several_ranks(void **state)
{
	Case c = { .ranks = 6, .parts = 1 };
	llmc_error err;

	(void)state;
	assert_int_equal(
	    comm_threads((CommShape){ .ranks = 6, .team = 2, .parts = 1, .onward = 40, .back = 4 },
	                 c.comm, &err),
	    LLMC_OK);
	run_threads(&c, stages_main);
	for (int k = 0; k < c.ranks; k++)
		comm_close(c.comm[k]);
}

static void *
waiting_main(void *arg)
{
	Thread *t = arg;
	char byte;
	float x = 1, y;

	if (t->rank == 2) {
		comm_end(t->c->comm[2]);
		t->ok = comm_ended(t->c->comm[2]);
	} else if (t->rank == 1) {
		t->ok = !comm_receive(t->c->comm[1], &byte, 1) &&
		        !comm_pipe_receive(t->c->comm[1], &byte, 1);
	} else {
		t->ok = !comm_all_reduce(t->c->comm[0], 0,
		                         &(CommReduce){ .x = &x, .y = &y, .rows = 1, .width = 1 });
	}
	return NULL;
}

static void
closing_a_group_wakes_waiting_ranks(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		Case c = { .ranks = 3, .parts = 1 };
		llmc_error err;
		char byte = 0;
		assert_int_equal(
		    comm_threads((CommShape){ .ranks = c.ranks, .team = c.ranks, .parts = 1 },
		                 c.comm, &err),
		    LLMC_OK);
		run_threads(&c, waiting_main);
		assert_false(comm_send(c.comm[0], &byte, 1));
		for (int k = 0; k < c.ranks; k++)
			comm_close(c.comm[k]);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_reduce_adds_in_rank_order),
		cmocka_unit_test(many_all_reduces_do_not_mix),
		cmocka_unit_test(all_gather_of_uneven_shares),
		cmocka_unit_test(bytes_arrive_in_order),
		cmocka_unit_test(bytes_travel_round_a_ring),
		cmocka_unit_test(stages_of_several_ranks),
		cmocka_unit_test(each_routed_expert_belongs_to_one_rank),
		cmocka_unit_test(closing_a_group_wakes_waiting_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
