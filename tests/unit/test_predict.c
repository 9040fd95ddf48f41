/* Output of `llmc plan --gpu`: bytes, operations and kernels of a step counted by hand; times
 * between the roofline and slightly above it. GPU names in the table, and those that drivers report
 * (nvidia-smi's lists), are the same devices; a device that is not in the table is not taken for a
 * similar one. */
#include "compiler_util.h"

#include "compiler/cost_model.h"
#include "plan/target.h"

static void
gpu_names_are_found(void **state)
{
	static const char *const same[][2] = {
		{ "NVIDIA A100-SXM4-80GB", "a100" },
		{ "NVIDIA A10", "a10" },
		{ "NVIDIA B200", "b200" },
		{ "NVIDIA H100 80GB HBM3", "h100" },
		{ "NVIDIA H200", "h200" },
		{ "NVIDIA L4", "l4" },
		{ "NVIDIA L40S", "l40s" },
		{ "NVIDIA GeForce RTX 3090", "rtx3090" },
		{ "NVIDIA GeForce RTX 4090", "rtx4090" },
		{ "GeForce RTX 5090", "rtx5090" },
		{ "Tesla T4", "t4" },
		{ "RTX 4090", "rtx4090" },
		{ "H100", "h100" },
		{ "NVIDIA B300 SXM6 AC", "b300" },
		{ "NVIDIA GB200", "gb200" },
		{ "NVIDIA GB300", "gb300" },
		{ "NVIDIA GB10", "gb10" },
		{ "NVIDIA Thor", "thor" },
		{ "Orin (nvgpu)", "orin" },
		{ "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000" },
		{ "NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000" },
	};
	static const char *const other[] = {
		"",
		"NVIDIA",
		"NVIDIA A100-SXM4-40GB",
		"NVIDIA A10G",
		"NVIDIA H100 PCIe",
		"NVIDIA H100 NVL",
		"NVIDIA GH200 480GB",
		"NVIDIA L40",
		"NVIDIA GeForce RTX 4090 Laptop GPU",
		"NVIDIA GeForce RTX 4090 D",
		"NVIDIA GeForce RTX 3090 Ti",
		"NVIDIA RTX A4090",
		"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
		"NVIDIA RTX PRO",
		"NVIDIA RTX PRO 5000 Blackwell",
		"NVIDIA RTX 6000 Ada Generation",
		"PRO 6000",
		"NVIDIA GB100",
		"NVIDIA 4090",
		"a100a10",
	};

	(void)state;
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		const Gpu *g = gpu_find(same[i][0]);
		assert_non_null(g);
		assert_string_equal(g->name, same[i][1]);
	}
	for (size_t i = 0; i < sizeof other / sizeof *other; i++)
		assert_null(gpu_find(other[i]));
	for (int i = 0; gpu_at(i); i++)
		assert_ptr_equal(gpu_find(gpu_at(i)->name), gpu_at(i));
}

/* Every row names its source and a target for which plans exist; launches cost less with
 * programmatic edges. */
static void
rows_of_the_table(void **state)
{
	(void)state;
	for (int i = 0; gpu_at(i); i++) {
		const Gpu *g = gpu_at(i);
		bool edges = strcmp(g->target, "cuda-sm_90a") == 0 ||
		             strncmp(g->target, "cuda-sm_1", 9) == 0;
		assert_true(target_is_cuda(g->target) && g->sms > 0 && g->memory_gib > 0 &&
		            g->bandwidth > 1e11 && g->peak > 1e13);
		assert_true(strlen(g->source) > 8);
		assert_true(g->launch_s == (edges ? 0.8e-6 : 1.3e-6));
	}
}

/* Llama 3 8B, from its model card. */
static const double LAYERS = 32, HIDDEN = 4096, WIDTH = 14336, QKV = 4096 + 2 * 1024,
                    VOCAB = 128256, KV = 2 * 8 * 128 * 2;

static void
near(const char *what, double got, double least, double most)
{
	if (!(got >= least && got <= most))
		fail_msg("%s: %g, expected %g .. %g", what, got, least, most);
}

static const Plan *
plan_8b(Bench *b, const char *target)
{
	b->spec = spec_from_file("configs/llama3-8b.yaml", NULL, &b->diag, &b->arena);
	const Compiled *c =
	    b->spec ? compile_spec(b->spec, target, NULL, NULL, &b->diag, &b->arena) : NULL;

	if (!c)
		fail_msg("%s", strbuf_str(&b->diag.text));
	return c->plan;
}

BENCH_TEST(bytes_and_flops_of_a_step)
{
	static const char *const gpu[] = { "a100", "h100", "rtx4090", "t4" };
	const double layers = LAYERS * (HIDDEN * QKV + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH),
	             head = VOCAB * HIDDEN;

	for (size_t i = 0; i < sizeof gpu / sizeof *gpu; i++) {
		const Gpu *g = gpu_find(gpu[i]);
		const Plan *p = plan_8b(b, g->target);
		for (int rows = 1; rows <= 64; rows *= 8) {
			const double context = 1000,
			             bytes = 2 * (layers + head) + rows * context * LAYERS * KV;
			const double flops =
			    rows * (2 * (layers + head) + context * LAYERS * 4 * HIDDEN);
			Prediction r = predict(p, g, 0, rows, (int64_t)context);
			near("bytes of a decode step", (double)r.bytes, bytes,
			     1.01 * bytes + rows * 40e6); /* and batch sizes in between */
			near("operations of a decode step", (double)r.flops, flops, 1.001 * flops);
			double read = bytes / g->bandwidth, multiply = flops / g->peak;
			near("a decode step", r.seconds, read > multiply ? read : multiply,
			     1.2 * (read + multiply) + 164 * g->launch_s);
			assert_true(r.launches == 164);
			assert_true(r.seconds == r.bytes_s + r.flops_s + r.launch_s);
		}
		/* a row sees half of the prompt on average; the head has one row */
		const double n = 4096,
		             flops = n * 2 * layers + 2 * head + n * n / 2 * LAYERS * 4 * HIDDEN;
		Prediction r = predict(p, g, 1, (int64_t)n, (int64_t)n);
		near("operations of a prompt", (double)r.flops, flops, 1.001 * flops);
		near("bytes of a prompt", (double)r.bytes, 2 * (layers + head) + n * LAYERS * KV,
		     1e12);
		near("a prompt", r.seconds, flops / g->peak, 2 * flops / g->peak);
		assert_true(r.flops_s > r.bytes_s);
	}
	/* twice the bandwidth, half the time */
	Gpu slow = *gpu_find("h100"), fast = slow;
	fast.bandwidth *= 2;
	const Plan *p = plan_8b(b, slow.target);
	near("half the time",
	     predict(p, &fast, 0, 1, 1000).bytes_s / predict(p, &slow, 0, 1, 1000).bytes_s, 0.499,
	     0.501);
}

/* Communication ops by hand: 2 all-reduces per layer and the logits; a ring sends 2 (n - 1) / n of
 * an all-reduce. Beyond one host, network time is added. */
BENCH_TEST(collectives_of_a_step)
{
	static const int tp[] = { 2, 8, 16 };
	const Gpu *g = gpu_find("h100");
	const LinkInfo *l = g->link;

	assert_true(l->bandwidth == 450e9 && l->latency_s == 6e-6 && strlen(l->source) > 8 &&
	            gpu_network->bandwidth < l->bandwidth);
	for (size_t i = 0; i < sizeof tp / sizeof *tp; i++) {
		const char *set[] = { arena_printf(&b->arena, "parallel.tp=%d", tp[i]), NULL };
		b->spec = spec_from_file("configs/llama3-8b.yaml", set, &b->diag, &b->arena);
		const Compiled *c =
		    b->spec ? compile_spec(b->spec, g->target, NULL, NULL, &b->diag, &b->arena)
		            : NULL;
		if (!c)
			fail_msg("%s", strbuf_str(&b->diag.text));
		for (int rows = 1; rows <= 64; rows *= 8) {
			const double n = tp[i], in = n < 8 ? n : 8, sum = 4 * HIDDEN * rows,
			             share = 4 * VOCAB / n * rows;
			double want =
			    2 * LAYERS * (l->latency_s + 2 * (in - 1) / in * sum / l->bandwidth) +
			    l->latency_s + (in - 1) / in * share * n / l->bandwidth;
			if (n > 8)
				want += 2 * LAYERS *
				            (gpu_network->latency_s +
				             sum / in / gpu_network->bandwidth) +
				        gpu_network->latency_s +
				        share * n / 2 / in / gpu_network->bandwidth;
			Prediction r = predict(c->plan, g, 0, rows, 1000);
			assert_int_equal(r.sums, 2 * LAYERS + 1);
			near("seconds on links", r.link_s, 0.99 * want, 1.01 * want);
			near("bytes of sums", (double)r.sum_bytes, 2 * LAYERS * sum + share,
			     2 * LAYERS * sum + 1.01 * share + 256 * rows);
			assert_true(r.seconds == r.bytes_s + r.flops_s + r.launch_s + r.link_s);
		}
	}
	/* a stage receives one row; stages of one host use its links */
	const char *set[] = { "parallel.pp=2", NULL };
	b->spec = spec_from_file("configs/llama3-8b.yaml", set, &b->diag, &b->arena);
	const Compiled *first = compile_rank(b->spec, g->target, 0, true, &b->diag, &b->arena),
	               *last = compile_rank(b->spec, g->target, 1, true, &b->diag, &b->arena);
	Prediction r = predict(first->plan, g, 0, 8, 1000), s = predict(last->plan, g, 0, 8, 1000);
	assert_true(r.link_s == 0 && r.sums == 0 && s.sums == 1);
	near("a row handed on", s.link_s, l->latency_s + 8 * 4 * HIDDEN / l->bandwidth,
	     1.001 * (l->latency_s + 8 * 4 * HIDDEN / l->bandwidth));
	near("layers of both", (double)(r.bytes + s.bytes),
	     2 * LAYERS * (HIDDEN * QKV + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH),
	     2.4 *
	         (LAYERS * (HIDDEN * QKV + HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH) + VOCAB * HIDDEN));
}

/* A decode step has at most five kernels per layer and four others (including its preparation and
 * sampling), one launch each. From sm_90 on each may start before its predecessor has ended. */
BENCH_TEST(kernels_of_a_decode_step)
{
	static const char *const target[] = { "cuda-sm_75",   "cuda-sm_80",   "cuda-sm_86",
		                              "cuda-sm_89",   "cuda-sm_90a",  "cuda-sm_100a",
		                              "cuda-sm_103a", "cuda-sm_110a", "cuda-sm_120a",
		                              "cuda-sm_121a" };
	static const char *const more[] = { "q8_0", "q4_k", "bf16" };

	for (size_t t = 0; t < sizeof target / sizeof *target; t++)
		for (size_t m = 0; m < sizeof more / sizeof *more; m++) {
			const char *set[] = {
				arena_printf(&b->arena, "storage.default=%s", more[m]), NULL
			};
			b->spec =
			    spec_from_file("configs/llama3-8b.yaml", set, &b->diag, &b->arena);
			const Compiled *c = b->spec ? compile_spec(b->spec, target[t], NULL, NULL,
			                                           &b->diag, &b->arena)
			                            : NULL;
			if (!c)
				fail_msg("%s", strbuf_str(&b->diag.text));
			const PlanPhase *ph = &c->plan->phase[0];
			int of_layer[33] = { 0 };
			for (int i = 0; i < ph->n_step; i++) {
				assert_true(ph->step[i].kernel >= 0);
				const PlanKernel *k = &c->plan->kernel[ph->step[i].kernel];
				int own = 0;
				for (int l = 0; l < k->n_launch; l++) {
					own += k->launch[l].path != PATH_LIBRARY;
					if (t >= 4 && !k->launch[l].pdl)
						fail_msg("%s: %s has no programmatic edge",
						         target[t], k->launch[l].fn);
				}
				if (own != 1)
					fail_msg("%s, %s: %s has %d launches", target[t], more[m],
					         k->id, own);
				of_layer[ph->step[i].layer + 1]++;
			}
			assert_true(of_layer[0] + 2 <= 4);
			for (int l = 1; l <= 32; l++)
				assert_true(of_layer[l] <= 5);
		}
}

/* A decode step of an MoE model reads a row's routed experts and the shared one; a long prompt
 * reads all experts. Sizes are those published by the models' authors. Six steps per layer with
 * grouped queries, none of them run by the reference. */
BENCH_TEST(decode_reads_only_the_routed_experts)
{
	static const struct {
		const char *path;
		int64_t n_experts, top_k, hidden, width, shared;
		int steps;
	} model[] = {
		{ "configs/qwen3-30b-a3b.yaml", 128, 8, 2048, 768, 0, 6 },
		{ "configs/deepseek-v2-lite.yaml", 64, 6, 2048, 1408, 2 * 1408, 0 },
	};
	static const char *const target[] = { "cpu-generic", "cpu-v3", "cpu-v4" };

	for (size_t m = 0; m < sizeof model / sizeof *model; m++)
		for (size_t t = 0; t < sizeof target / sizeof *target; t++) {
			const char *set[] = { "storage.default=bf16", NULL };
			b->spec = spec_from_file(model[m].path, set, &b->diag, &b->arena);
			const Compiled *c = b->spec ? compile_spec(b->spec, target[t], NULL, NULL,
			                                           &b->diag, &b->arena)
			                            : NULL;
			if (!c)
				fail_msg("%s", strbuf_str(&b->diag.text));
			for (int ph = 0; ph < 2; ph++) {
				const PlanPhase *phase = &c->plan->phase[ph];
				int64_t one = 0, many = 0,
				        expert = 3 * model[m].hidden * model[m].width,
				        shared = 3 * model[m].hidden * model[m].shared;
				int steps = 0, last = phase->step[phase->n_step - 2].layer;
				for (int i = 0; i < phase->n_step; i++) {
					const PlanStep *s = &phase->step[i];
					assert_true(s->kernel >= 0);
					steps += s->layer == last;
					if (s->layer == last && (s->op == OP_norm_moe_glu ||
					                         s->op == OP_moe_down_add)) {
						one += plan_step_weights(c->plan, s, 1);
						many += plan_step_weights(c->plan, s, 100000);
					}
				}
				const int64_t norm = 4 * model[m].hidden;
				assert_int_equal(one,
				                 norm + 2 * (model[m].top_k * expert + shared));
				assert_int_equal(many,
				                 norm + 2 * (model[m].n_experts * expert + shared));
				if (model[m].steps)
					assert_int_equal(steps, model[m].steps);
			}
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpu_names_are_found),
		cmocka_unit_test(rows_of_the_table),
		cmocka_unit_test(bytes_and_flops_of_a_step),
		cmocka_unit_test(collectives_of_a_step),
		cmocka_unit_test(kernels_of_a_decode_step),
		cmocka_unit_test(decode_reads_only_the_routed_experts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
