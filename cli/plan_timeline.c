/* llmc plan --timeline: computes a timeline of a decode step of one row on a GPU, from the plan
 * alone. For each op it has the reading, the wait until the next op reads, the bytes in flight
 * meanwhile, and the idle SMs.
 *
 *   reading   weights and cache over the rate; the largest CTA's share if groups divide unevenly
 *   wait      from the last byte to the first load of the next kernel
 *   prefetch  bytes of the next weights that are read during waits, at most the plan's window
 *
 * The constants below fit the ops of tests/gpu/results/nvidia-h100-80gb-hbm3.json, which ran
 * without prefetch. On other GPUs the waits are estimates. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/plan_timeline.h"

static const double RATE = 0.84; /* share of the data sheet's bandwidth */
/* us: wait after a GEMV; wait if the next GEMV has a prologue for block formats */
static const double WAIT = 2.8, WAIT_BLOCKS = 5.8;
static const double WAIT_EXPERTS = 6.0; /* us: wait before experts, which prefetch nothing */
/* us in addition to reading the cache; latent attention: with one tile of 64 positions */
static const double ATTENTION = 2.8, LATENT = 8.5;
/* us: each further tile of latent attention; selection of experts */
static const double LATENT_TILE = 1.5, ROUTE = 6.0;
static const double STEP = 30; /* us: sampling and the beginning of the next step */
enum { RING_KB = 88 };         /* KB in flight per SM while a GEMV reads */

typedef struct Task {
	const char *op;
	int layer, idle; /* SMs without work */
	/* in_flight: prefetched bytes at the end of the op */
	double bytes, read_us, wait_us, in_flight;
	double before_us, saved_us; /* start without prefetch; reading time that prefetch saves */
} Task;

static double
number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const json_t *
tensor_of(const json_t *plan, const char *id)
{
	const json_t *all = json_object_get(plan, "tensor"), *t;
	size_t i;

	json_array_foreach (all, i, t)
		if (!strcmp(json_string_value(json_object_get(t, "id")), id))
			return t;
	return NULL;
}

/* Add the elements of a step's matrices: of stacked experts only the selected share. */
static void
add_elements(const json_t *plan, const json_t *step, double *all, double *used, bool *blocks)
{
	const json_t *arg, *attr = json_object_get(step, "attr");
	const double experts = number(attr, "n_experts"), top = number(attr, "top_k");
	const char *op = json_string_value(json_object_get(step, "op"));
	size_t i;

	json_array_foreach (json_object_get(step, "arg"), i, arg) {
		const json_t *t =
		    json_is_string(arg) ? tensor_of(plan, json_string_value(arg)) : NULL;
		const double n = t ? number(t, "rows") * number(t, "cols") : 0;
		if (n == 0)
			continue;
		const char *type = json_string_value(json_object_get(t, "dtype"));
		const bool stack = strncmp(op, "moe_", 4) == 0 || strstr(op, "_moe_");
		const char *dot = strrchr(json_string_value(arg), '.');
		const bool shared = dot && strncmp(dot, ".s_", 3) == 0;
		*all += n;
		*used += stack && !shared && experts > 0 ? n * top / experts : n;
		*blocks |= strcmp(type, "f16") && strcmp(type, "bf16") && strcmp(type, "f32");
	}
}

/* Return the groups of 8 rows of the CTA with most of them, divided by the mean over CTAs. */
static double
cta_imbalance(const json_t *step, const json_t *plan, int sms)
{
	const json_t *arg;
	double rows = 0;
	size_t i;

	json_array_foreach (json_object_get(step, "arg"), i, arg) {
		const json_t *t =
		    json_is_string(arg) ? tensor_of(plan, json_string_value(arg)) : NULL;
		rows = t && number(t, "cols") > 0 ? number(t, "rows") : rows;
	}
	const double mean = rows / 8 / sms, most = (double)(int)(mean + 0.999999);
	return mean > 1 ? most / mean : 1;
}

static Task
task_of(const json_t *plan, const json_t *step, const llmc_gpu *gpu, int32_t positions)
{
	Task t = { .op = json_string_value(json_object_get(step, "op")),
		   .layer = (int)number(step, "layer") };
	const double rate = gpu->bandwidth * RATE / 1e6; /* bytes per us */
	const json_t *attr = json_object_get(step, "attr");
	double all = 0, used = 0;
	bool blocks = false;

	add_elements(plan, step, &all, &used, &blocks);
	if (strcmp(t.op, "embed") != 0 && all > 0)
		t.bytes = number(step, "weight_bytes") * used / all;
	t.read_us = t.bytes / rate;
	t.wait_us = blocks ? WAIT_BLOCKS : WAIT;
	if (!strcmp(t.op, "attention")) {
		const double heads = number(attr, "kv_heads"),
		             group = number(attr, "heads") / (heads > 0 ? heads : 1);
		t.bytes = 4.0 * positions * heads * number(attr, "dim");
		t.read_us = t.bytes / rate + ATTENTION;
		t.wait_us = 0;
		t.idle = gpu->sms - (int)(heads * (double)(int)((group + 7) / 8));
	} else if (!strcmp(t.op, "mla_attend")) {
		t.bytes = 2.0 * positions * (number(attr, "kv_rank") + number(attr, "rope_dim"));
		t.read_us = LATENT + LATENT_TILE * ((positions - 1) / 64);
		t.wait_us = 0;
		t.idle = gpu->sms - 1;
	} else if (!strcmp(t.op, "norm_route")) {
		t.wait_us = ROUTE;
		t.idle = gpu->sms - (int)(number(attr, "n_experts") / 8);
	} else if (strstr(t.op, "moe_")) {
		t.wait_us = strstr(t.op, "glu") ? WAIT_EXPERTS : WAIT;
	} else if (t.bytes > 0) {
		t.read_us *= cta_imbalance(step, plan, gpu->sms);
	}
	t.idle = t.idle < 0 ? 0 : t.idle;
	return t;
}

/* Subtract from each reading the bytes that were prefetched during earlier waits. Reads from L2
 * count as free, so the gain is an upper bound. */
static void
apply_prefetch(const json_t *steps, Task *task, size_t n, const llmc_gpu *gpu)
{
	const double rate = gpu->bandwidth * RATE / 1e6;

	for (size_t i = 0; i < n; i++) {
		const json_t *f, *arg;
		size_t k, a;
		/* during attention and routing the memory is idle */
		double free_us = task[i].wait_us + (task[i].idle > 0 ? task[i].read_us : 0);
		json_array_foreach (json_object_get(json_array_get(steps, i), "prefetch"), k, f) {
			const char *id = json_string_value(json_object_get(f, "tensor"));
			const double bytes = number(f, "bytes"),
			             got = bytes < free_us * rate ? bytes : free_us * rate;
			size_t j = i;
			bool found = false;
			for (size_t step = 1; step < n && !found; step++) {
				j = (i + step) % n;
				json_array_foreach (
				    json_object_get(json_array_get(steps, j), "arg"), a, arg)
					found |= json_is_string(arg) &&
					         !strcmp(json_string_value(arg), id);
			}
			free_us -= got / rate;
			task[i].in_flight += got;
			task[found ? j : i].saved_us += found ? got / rate : 0;
		}
	}
}

static const char page_head[] =
    "<!doctype html><meta charset=utf-8><title>llmc timeline</title><style>body{font:14px "
    "sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.r{fill:#4878a8}.w{fill:#d08040}.p{fill:#70a860}"
    "</style>";

static void
write_page(FILE *f, const char *name, const llmc_gpu *gpu, int32_t positions, const Task *task,
           size_t n, double before, double after)
{
	const double shown = 400; /* us */

	fprintf(f,
	        "%s<h1>%s on %s</h1>\n<p>One decode step of one row at %d positions, by "
	        "arithmetic: %.0f us, and %.0f us with prefetch of the next weights to L2 "
	        "(projected).</p>\n",
	        page_head, name, gpu->title, positions, before, after);
	fprintf(f,
	        "<p>The first %.0f us: reading <svg width=12 height=12><rect class=r width=12 "
	        "height=12/></svg>, of it prefetched <svg width=12 height=12><rect class=p "
	        "width=12 height=12/></svg>, waits <svg width=12 height=12><rect class=w width=12 "
	        "height=12/></svg></p>\n<svg width=1200 height=40>",
	        shown);
	for (size_t i = 0; i < n && task[i].before_us < shown; i++) {
		const Task *t = &task[i];
		const double x = t->before_us * 3, w = t->read_us * 3, s = t->saved_us * 3;
		fprintf(f,
		        "<rect class=p x=%.2f width=%.2f height=40 /><rect class=r x=%.2f "
		        "width=%.2f height=40><title>%s, layer %d</title></rect><rect class=w "
		        "x=%.2f width=%.2f height=40 />",
		        x, s, x + s, w > s ? w - s : 0, t->op, t->layer, x + w, t->wait_us * 3);
	}
	fputs("</svg>\n<table><tr><th>op<th>layer<th>start, us<th>MB<th>reading, us<th>of it "
	      "prefetched<th>wait, us<th>in flight while reading, MB<th>prefetched at its end, "
	      "MB<th>idle SMs</tr>\n",
	      f);
	for (size_t i = 0; i < n; i++) {
		const Task *t = &task[i];
		fprintf(f,
		        "<tr><td>%s<td>%d<td>%.1f<td>%.2f<td>%.2f<td>%.2f<td>%.1f<td>%.1f<td>"
		        "%.2f<td>%d</tr>\n",
		        t->op, t->layer, t->before_us, t->bytes / 1e6, t->read_us, t->saved_us,
		        t->wait_us, t->idle || t->bytes == 0 ? 0 : gpu->sms * RING_KB * 1024 / 1e6,
		        t->in_flight / 1e6, t->idle);
	}
	fputs("</table>\n", f);
}

llmc_status
plan_timeline(const char *path, const llmc_model *m, const llmc_gpu *gpu, int32_t positions,
              llmc_error *err)
{
	const char *text = llmc_plan_json(m);
	json_t *plan = json_parse(text, strlen(text), 0, NULL, NULL);
	const json_t *steps =
	    json_object_get(json_array_get(json_object_get(plan, "phase"), 0), "step");
	const size_t n = json_array_size(steps);
	Task *task = calloc(n + 1, sizeof *task);
	FILE *f = task ? strcmp(path, "-") ? fopen(path, "wb") : stdout : NULL;
	double before = STEP, after = STEP;

	err->code = LLMC_OK;
	if (!f) {
		err->code = task ? LLMC_E_IO : LLMC_E_MEMORY;
		snprintf(err->text, sizeof err->text,
		         task ? "%s: cannot write: %s" : "%s: out of memory", path,
		         strerror(errno));
		free(task);
		json_decref(plan);
		return err->code;
	}
	for (size_t i = 0; i < n; i++)
		task[i] = task_of(plan, json_array_get(steps, i), gpu, positions);
	apply_prefetch(steps, task, n, gpu);
	for (size_t i = 0; i < n; i++) {
		Task *t = &task[i];
		t->saved_us = t->saved_us < t->read_us ? t->saved_us : t->read_us;
		t->before_us = before - STEP;
		before += t->read_us + t->wait_us;
		after += t->read_us + t->wait_us - t->saved_us;
	}
	write_page(f, json_string_value(json_object_get(plan, "name")), gpu, positions, task, n,
	           before, after);
	printf("timeline of a decode step, one row at %d positions: %.0f us, %.0f us with prefetch "
	       "(projected)\n",
	       positions, before, after);
	bool bad = ferror(f) != 0;
	if (f != stdout)
		bad |= fclose(f) != 0;
	free(task);
	json_decref(plan);
	if (bad) {
		err->code = LLMC_E_IO;
		snprintf(err->text, sizeof err->text, "%s: cannot write: %s", path,
		         strerror(errno));
	}
	return err->code;
}
