/* Code that all transports share: adding the other terms of a sum, ordering the columns of a
 * gather, and dispatching calls to the transport. */
#include "runtime/comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

bool
comm_all_reduce(Comm *c, int part, const CommReduce *s)
{
	return c->ops->all_reduce(c, part, s);
}

bool
comm_all_gather(Comm *c, int part, const CommGather *j)
{
	return c->ops->all_gather(c, part, j);
}

bool
comm_send(Comm *c, const void *data, size_t n)
{
	return c->ops->send(c, data, n);
}

bool
comm_receive(Comm *c, void *data, size_t n)
{
	return c->ops->receive(c, data, n);
}

bool
comm_gather_to_root(Comm *c, const void *data, size_t n, void *all)
{
	return c->ops->gather_to_root(c, data, n, all);
}

bool
comm_pipe_send(Comm *c, const void *data, size_t n)
{
	return c->ops->pipe_send(c, data, n);
}

bool
comm_pipe_receive(Comm *c, void *data, size_t n)
{
	return c->ops->pipe_receive(c, data, n);
}

void
comm_end(Comm *c)
{
	c->ops->end(c);
}

bool
comm_ended(const Comm *c)
{
	return c->ops->ended(c);
}

void
comm_close(Comm *c)
{
	if (c)
		c->ops->close(c);
}

int
comm_timeout(void)
{
	const char *text = getenv("LLMC_COMM_TIMEOUT");

	return text && atoi(text) > 0 ? atoi(text) : 30;
}

int
comm_rank(const Comm *c)
{
	return c->rank;
}

int
comm_ranks(const Comm *c)
{
	return c->ranks;
}

/* 32 bits of the step number, 16 of the layer and 16 of the op; layer and op count from 1 */
void
comm_set_position(Comm *c, int64_t step, int layer, int op)
{
	if (c->where)
		atomic_store_explicit(c->where,
		                      (uint64_t)(step & 0xffffffff) << 32 |
		                          (uint64_t)((layer + 1) & 0xffff) << 16 |
		                          (uint64_t)((op + 1) & 0xffff),
		                      memory_order_relaxed);
}

void
comm_position_text(uint64_t where, char *text, size_t n)
{
	const unsigned step = (unsigned)(where >> 32), layer = where >> 16 & 0xffff,
	               op = where & 0xffff;

	if (!step)
		snprintf(text, n, "before the first step");
	else if (!op || op > OP_COUNT)
		snprintf(text, n, "after step %u", step);
	else if (!layer)
		snprintf(text, n, "in step %u, %s", step, op_info[op - 1].name);
	else
		snprintf(text, n, "in step %u, layer %u, %s", step, layer - 1,
		         op_info[op - 1].name);
}

llmc_status
comm_error(const Comm *c, llmc_error *err)
{
	char why[300] = "a rank of this model has ended";

	c->ops->why(c, why, sizeof why);
	return error_set(err, LLMC_E_DEVICE, "%s", why);
}

void
comm_finish_sum(const CommReduce *s, int64_t at, int64_t n, float *sum)
{
	const float *const bias[2] = { s->b, s->b2 };
	const float *r = s->r ? s->r + at : NULL;
	float *y = s->y + at;

	for (int j = 0; j < 2; j++)
		for (int64_t i = 0; bias[j] && i < n;) {
			int64_t col = (at + i) % s->width,
			        run = s->width - col < n - i ? s->width - col : n - i;
			for (int64_t q = 0; q < run; q++)
				sum[i + q] += bias[j][col + q];
			i += run;
		}
	for (int64_t i = 0; i < n; i++)
		y[i] = r ? sum[i] + s->scale * r[i] : sum[i];
}

CommStream
comm_stream(const CommGather *j, int ranks, int rank, int part, int parts)
{
	CommStream s;

	op_share(j->width, j->unit, ranks, rank, &s.first, &s.count);
	s.at = s.count * j->rows * part / parts;
	s.end = s.count * j->rows * (part + 1) / parts;
	return s;
}

void
comm_store_columns(const CommGather *j, const CommStream *s, int64_t at, int64_t end,
                   const float *x)
{
	while (at < end) {
		int64_t row = at / s->count, col = at % s->count,
		        run = s->count - col < end - at ? s->count - col : end - at;
		memcpy(j->y + row * j->width + s->first + col, x, (size_t)run * sizeof *x);
		x += run;
		at += run;
	}
}
