/* Parallel streams (AltUp). All streams of a token form one row. A layer computes on one of
 * them. */
#include "compiler/build/build_model.h"

#include <math.h>

/* lower bound of the mean square of a stream */
#define LEAST 1e-5

static int
product(ModelBuilder *b, int x, int w, int64_t rows, int64_t cols, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, matmul, .x = x, .w = w, .b = -1, .y = y);

	op_set_int(b->g, o, "rows", rows);
	op_set_int(b->g, o, "cols", cols);
	return y;
}

/* y = x scaled to the root mean square of r. */
static int
match_rms(ModelBuilder *b, int x, int r, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, match_rms, .x = x, .r = r, .y = y);

	op_set_int(b->g, o, "width", b->s->hidden);
	op_set_num(b->g, o, "eps", LEAST);
	return y;
}

static void
set_stream_attrs(ModelBuilder *b, Op *o)
{
	op_set_int(b->g, o, "width", b->s->hidden);
	op_set_int(b->g, o, "groups", b->s->streams.count);
}

/* tanh(router (norm(x) / hidden)) */
static int
modes(ModelBuilder *b, int x, const char *name)
{
	const Spec *s = b->s;
	int n = s->streams.count,
	    normed = build_value(b, arena_printf(b->g->arena, "%s_normed", name));
	Op *o = OP(b, rmsnorm, .x = x, .w = b->stream_norm, .y = normed);

	op_set_int(b->g, o, "dim", s->hidden);
	op_set_int(b->g, o, "groups", 1);
	op_set_num(b->g, o, "eps", s->norm.eps);
	op_set_int(b->g, o, "plus_one", s->norm.plus_one);
	int in = build_gain(b, normed, NULL, 1.0 / (double)s->hidden, s->hidden,
	                    arena_printf(b->g->arena, "%s_in", name));
	int raw = product(b, in, b->stream_router, n, s->hidden,
	                  arena_printf(b->g->arena, "%s_raw", name)),
	    y = build_value(b, name);
	o = OP(b, softcap, .x = raw, .y = y);
	op_set_int(b->g, o, "width", n);
	op_set_num(b->g, o, "scale", 1);
	op_set_num(b->g, o, "softcap", 1);
	return y;
}

int
build_streams(ModelBuilder *b, int x)
{
	const Spec *s = b->s;
	int n = s->streams.count - 1, all = x;

	build_at(b, "streams.count");
	for (int i = 0; i < n; i++) {
		int y = product(
		    b, x, build_one_of(b->g, "e_stream_in", -1, i, n, s->hidden, s->hidden, b->loc),
		    s->hidden, s->hidden, arena_printf(b->g->arena, "stream%d_raw", i + 1));
		y = match_rms(b, y, x, arena_printf(b->g->arena, "stream%d", i + 1));
		int both = build_value(b, arena_printf(b->g->arena, "streams%d", i + 2));
		Op *o = OP(b, concat, .x = all, .z = y, .y = both);
		op_set_int(b->g, o, "width", (i + 1) * s->hidden);
		op_set_int(b->g, o, "count", s->hidden);
		all = both;
	}
	return all;
}

int
build_stream_active(ModelBuilder *b, int all, const char *name)
{
	const Spec *s = b->s;

	build_at(b, "streams.active");
	return build_slice(b, all, s->streams.count * s->hidden, s->streams.active * s->hidden,
	                   s->hidden, name);
}

int
build_stream_predict(ModelBuilder *b, int all)
{
	const Spec *s = b->s;
	int64_t n = s->streams.count;

	int seen = build_stream_active(b, all, "stream_in");
	build_at(b, "streams.count");
	b->stream_norm = build_matrix(b, "stream_norm", s->hidden, 0);
	b->stream_router = build_matrix(b, "stream_router", n, s->hidden);
	int m = build_matmul(b, modes(b, seen, "predict"), "stream_predict", false, n * n, n,
	                     "predict_by"),
	    y = build_value(b, "predicted");
	Op *o = OP(b, stream_mix, .x = all, .m = m, .y = y);
	set_stream_attrs(b, o);
	return y;
}

int
build_stream_correct(ModelBuilder *b, int all, int a)
{
	const Spec *s = b->s;
	int64_t n = s->streams.count;

	build_at(b, "streams.count");
	int m = build_matmul(b, modes(b, a, "correct"), "stream_correct", false, n, n,
	                     "correct_by"),
	    y = build_value(b, "corrected");
	Op *o = OP(b, stream_correct, .x = all, .a = a, .m = m, .y = y);
	set_stream_attrs(b, o);
	op_set_int(b->g, o, "first", s->streams.active);
	return y;
}

int
build_stream_add(ModelBuilder *b, int all, int z)
{
	build_at(b, "streams.count");
	int y = build_value(b, "with_ple");
	Op *o = OP(b, stream_add, .x = all, .z = z, .y = y);
	set_stream_attrs(b, o);
	op_set_int(b->g, o, "first", 1);
	return y;
}

int
build_stream_merge(ModelBuilder *b, int all)
{
	const Spec *s = b->s;
	int n = s->streams.count;

	build_at(b, "streams.count");
	int x = build_slice(b, all, n * s->hidden, 0, s->hidden, "stream0_out"), sum = x;
	for (int i = 1; i < n; i++) {
		int y = build_slice(b, all, n * s->hidden, i * s->hidden, s->hidden,
		                    arena_printf(b->g->arena, "stream%d_end", i));
		y = product(b, y,
		            build_one_of(b->g, "e_stream_out", -1, i - 1, n - 1, s->hidden,
		                         s->hidden, b->loc),
		            s->hidden, s->hidden, arena_printf(b->g->arena, "stream%d_out_raw", i));
		sum = build_add(b, sum,
		                match_rms(b, y, x, arena_printf(b->g->arena, "stream%d_out", i)),
		                1.0, arena_printf(b->g->arena, "streams_sum%d", i));
	}
	return build_gain(b, sum, NULL, 1.0 / n, s->hidden, "merged");
}
