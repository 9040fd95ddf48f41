/* llmc plan: show the steps of a model, their memory and their predicted speed. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan_html.h"
#include "cli/plan_timeline.h"

static void
row(const char *name, int64_t bytes)
{
	char text[32];

	printf("  %-10s %14lld  %s\n", name, (long long)bytes, human_bytes((double)bytes, text));
}

/* Print predictions for decode steps on a GPU together with the CPU, with the parts of the time.
 * There is none for prefill, which is compute-bound on the CPU, because the peak of the CPU is
 * unknown. */
static llmc_status
predictions_of_two(const llmc_model *m, const Common *c, const llmc_gpu *g, bool json,
                   llmc_error *err)
{
	static const int32_t rows[] = { 1, 8, 64 };
	const int32_t context = c->context ? c->context : 1024;
	const llmc_machine at = { .size = sizeof at,
		                  .gpu = g->name,
		                  .host_bandwidth = offload_host_bandwidth(c) };
	char a[32], b[32];

	if (json)
		printf(",\"gpu\":{\"name\":\"%s\",\"host_bandwidth\":%.0f,\"steps\":[", g->name,
		       at.host_bandwidth);
	else
		printf(
		    "predicted, not measured, at %d positions on %s (%.0f GB/s, of which kernels "
		    "reach 90 %%; %s) and a host of %.1f GB/s (%s), in turn\n"
		    "  %-18s %10s %9s %10s %9s %9s %9s %9s %10s  bound\n",
		    context, g->title, g->bandwidth * 1e-9, g->source, at.host_bandwidth * 1e-9,
		    c->host_bandwidth > 0 ? "--host-bandwidth" : "measured here", "step",
		    "GPU bytes", "GPU ms", "CPU bytes", "CPU ms", "crossings", "link ms", "ms",
		    "tokens/s");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		llmc_prediction p = LLMC_INIT(llmc_prediction);
		char name[32];
		llmc_status s = llmc_predict_two(m, &at, rows[i], context, &p, err);
		if (s != LLMC_OK)
			return s;
		const double gpu_s = p.seconds - p.host_s - p.link_s;
		snprintf(name, sizeof name, "decode, batch %d", rows[i]);
		if (json)
			printf("%s{\"test\":\"decode\",\"rows\":%d,\"context\":%d,\"bytes\":%lld,"
			       "\"gpu_s\":%.9f,\"host_bytes\":%lld,\"host_s\":%.9f,\"crossings\":"
			       "%d,\"link_s\":%.9f,\"seconds\":%.9f,\"tps\":%.3f,\"bound\":\"%s\"}",
			       i ? "," : "", rows[i], context, (long long)p.bytes, gpu_s,
			       (long long)p.host_bytes, p.host_s, p.sums, p.link_s, p.seconds,
			       p.tokens_per_s, p.bound);
		else
			printf("  %-18s %10s %9.3f %10s %9.3f %9d %9.3f %9.3f %10.1f  %s\n", name,
			       human_bytes((double)p.bytes, a), gpu_s * 1e3,
			       human_bytes((double)p.host_bytes, b), p.host_s * 1e3, p.sums,
			       p.link_s * 1e3, p.seconds * 1e3, p.tokens_per_s, p.bound);
	}
	if (json)
		printf("]}");
	return LLMC_OK;
}

/* Print predictions for the usual benchmark points: decode at batch 1, 8 and 64, prefill of
 * 4096. */
static llmc_status
predictions(const llmc_model *m, const char *gpu, int32_t context, int64_t weights, bool json,
            llmc_error *err)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	static const struct {
		bool prefill;
		int32_t rows;
	} point[] = { { false, 1 }, { false, 8 }, { false, 64 }, { true, 4096 } };
	llmc_gpu g = LLMC_INIT(llmc_gpu);
	char text[32], total[32];

	llmc_status s = llmc_gpu_find(gpu, &g, err);
	if (s != LLMC_OK)
		return s;
	llmc_info(m, &info);
	if (json)
		printf(",\"gpu\":{\"name\":\"%s\",\"title\":\"%s\",\"bandwidth\":%.0f,\"peak\":%."
		       "0f,\"memory\":%lld,\"launch_s\":%.9f,\"link\":\"%s\",\"source\":\"%s\","
		       "\"steps\":[",
		       g.name, g.title, g.bandwidth, g.peak, (long long)g.memory, g.launch_s,
		       g.link, g.source);
	else
		printf("predicted, not measured, on %s (%.0f GB/s, %.0f TFLOP/s; %s)\n", g.title,
		       g.bandwidth * 1e-9, g.peak * 1e-12, g.source);
	if (!json && info.ranks > 1)
		printf("%d GPUs over %s (%.0f GB/s, %.1f us per all-reduce; %s)\n", info.ranks,
		       g.link, g.link_bandwidth * 1e-9, g.link_latency_s * 1e6, g.link_source);
	if (!json && weights > g.memory)
		printf("its memory of %s does not hold the weights of %s\n",
		       human_bytes((double)g.memory, total), human_bytes((double)weights, text));
	if (!json)
		printf("  %-22s %10s %10s %8s %10s %10s %12s  bound\n", "step", "bytes", "GFLOP",
		       "kernels", "links ms", "ms", "tokens/s");
	for (size_t i = 0; i < sizeof point / sizeof *point; i++) {
		llmc_prediction p = LLMC_INIT(llmc_prediction);
		int32_t length = point[i].prefill ? point[i].rows : context;
		char name[48];
		s = llmc_predict(m, gpu, point[i].prefill, point[i].rows, length, &p, err);
		if (s != LLMC_OK)
			return s;
		if (json) {
			printf("%s{\"test\":\"%s\",\"rows\":%d,\"context\":%d,\"bytes\":%lld,"
			       "\"flops\":%lld,\"launches\":%d,\"seconds\":%.9f,"
			       "\"tps\":%.3f,\"bound\":\"%s\",\"sums\":%d,\"sum_bytes\":%lld,"
			       "\"link_s\":%.9f}",
			       i ? "," : "", point[i].prefill ? "prefill" : "decode", point[i].rows,
			       length, (long long)p.bytes, (long long)p.flops, p.launches,
			       p.seconds, p.tokens_per_s, p.bound, p.sums, (long long)p.sum_bytes,
			       p.link_s);
			continue;
		}
		snprintf(name, sizeof name, point[i].prefill ? "prefill %d" : "decode, batch %d",
		         point[i].rows);
		printf("  %-22s %10s %10.1f %8d %10.3f %10.3f %12.1f  %s\n", name,
		       human_bytes((double)p.bytes, text), (double)p.flops * 1e-9, p.launches,
		       p.link_s * 1e3, p.seconds * 1e3, p.tokens_per_s, p.bound);
	}
	if (json)
		printf("]}");
	return LLMC_OK;
}

/* Print one column per rank: its memory, its share of heads and columns, the bytes it exchanges. */
static llmc_status
ranks(const llmc_model *m, const llmc_limits *lim, bool json, llmc_error *err)
{
	static const struct {
		const char *name, *key;
		size_t at;
		bool bytes, is32;
	} row_of[] = {
		{ "weights", "weights", offsetof(llmc_rank_info, memory.weights), true, false },
		{ "kv", "kv", offsetof(llmc_rank_info, memory.kv), true, false },
		{ "kv per position", "kv_per_token", offsetof(llmc_rank_info, memory.kv_per_token),
		  true, false },
		{ "scratch", "scratch", offsetof(llmc_rank_info, memory.scratch), true, false },
		{ "query heads", "heads", offsetof(llmc_rank_info, heads), false, true },
		{ "kv heads", "kv_heads", offsetof(llmc_rank_info, kv_heads), false, true },
		{ "ffn columns", "ffn", offsetof(llmc_rank_info, ffn), false, false },
		{ "per expert", "expert", offsetof(llmc_rank_info, expert), false, false },
		{ "shared expert", "shared", offsetof(llmc_rank_info, shared), false, false },
		{ "lm head rows", "vocab", offsetof(llmc_rank_info, vocab), false, false },
		{ "all-reduces", "sums", offsetof(llmc_rank_info, sums), false, true },
		{ "reduced per row", "sum_bytes", offsetof(llmc_rank_info, sum_bytes), true,
		  false },
		{ "gathered per row", "join_bytes", offsetof(llmc_rank_info, join_bytes), true,
		  false },
	};
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	char text[32];

	llmc_info(m, &info);
	llmc_rank_info *r = calloc((size_t)info.ranks, sizeof *r);
	for (int32_t k = 0; r && k < info.ranks; k++) {
		r[k].size = sizeof *r;
		llmc_status s = llmc_rank_for(m, k, lim, &r[k], err);
		if (s != LLMC_OK) {
			free(r);
			return s;
		}
	}
	for (size_t i = 0; r && !json && i < sizeof row_of / sizeof *row_of; i++) {
		if (i == 0) {
			printf("\n%-18s", "rank");
			for (int32_t k = 0; k < info.ranks; k++)
				printf(" %12d", k);
			printf("\n");
		}
		int64_t sum = 0;
		for (int32_t k = 0; k < info.ranks; k++)
			sum += row_of[i].is32 ? *(int32_t *)((char *)&r[k] + row_of[i].at)
			                      : *(int64_t *)((char *)&r[k] + row_of[i].at);
		if (!sum)
			continue;
		printf("  %-16s", row_of[i].name);
		for (int32_t k = 0; k < info.ranks; k++) {
			int64_t v = row_of[i].is32 ? *(int32_t *)((char *)&r[k] + row_of[i].at)
			                           : *(int64_t *)((char *)&r[k] + row_of[i].at);
			if (row_of[i].bytes)
				printf(" %12s", human_bytes((double)v, text));
			else
				printf(" %12lld", (long long)v);
		}
		printf("\n");
	}
	for (int32_t k = 0; r && json && k < info.ranks; k++) {
		printf("%s{", k ? "," : ",\"ranks\":[");
		for (size_t i = 0; i < sizeof row_of / sizeof *row_of; i++)
			printf("%s\"%s\":%lld", i ? "," : "", row_of[i].key,
			       (long long)(row_of[i].is32
			                       ? *(int32_t *)((char *)&r[k] + row_of[i].at)
			                       : *(int64_t *)((char *)&r[k] + row_of[i].at)));
		printf("}%s", k + 1 == info.ranks ? "]" : "");
	}
	free(r);
	return LLMC_OK;
}

typedef struct PlanArgs {
	Common c;
	const char *path, *gpu, *html, *timeline;
	llmc_gpu g; /* GPU found for --gpu */
	llmc_limits lim;
	llmc_memory mem;
	int32_t fit; /* number of sequences that fit --memory; -1: no --memory */
	bool fitting;
	llmc_fitted fitted; /* for --fit */
} PlanArgs;

static int
parse(int argc, char **argv, PlanArgs *p)
{
	Common *c = &p->c;
	int32_t batch = 0, length = 0;
	const char *args[1] = { NULL };
	char gpu_text[256] = "predict speed on a GPU:";

	for (int i = 0; llmc_gpu_at(i, &p->g); i++)
		snprintf(gpu_text + strlen(gpu_text), sizeof gpu_text - strlen(gpu_text), " %s",
		         p->g.name);
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Plan", NULL, NULL, NULL },
		{ OPT_INT, 'b', "batch", "B", &batch, "number of sequences (same as --seqs) [1]" },
		{ OPT_INT, 'l', "length", "L", &length,
		  "positions per sequence (same as --context) [at most 4096]" },
		{ OPT_TEXT, 0, "gpu", "NAME", &p->gpu, gpu_text },
		{ OPT_FLOAT, 0, "host-bandwidth", "GB/s", &c->host_bandwidth,
		  "with --offload: read bandwidth of the host [measured on this machine]" },
		{ OPT_TEXT, 0, "html", "FILE", &p->html,
		  "write a self-contained page: layers, memory, roofline, and all steps with their "
		  "kernel source" },
		{ OPT_TEXT, 0, "timeline", "FILE", &p->timeline,
		  "with --gpu: write a page with the reads, waits, prefetches and idle SMs of a "
		  "decode step of one row, by arithmetic" },
		{ OPT_FLAG, 0, "fit", NULL, &p->fitting,
		  "choose context and KV as run and serve do, by the free memory, by --memory or "
		  "by the GPU's" },
		{ OPT_TEXT, 0, "draft", "MODEL", &c->draft,
		  "show the plan of this draft of MODEL, a checkpoint or mtp, instead of the "
		  "model's [none]" },
		OPT_COMMON(*c),
	};

	if (OPT_PARSE(&cmd_plan, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_plan, NO_MODEL);
	if (c->draft && p->html)
		return opt_usage_error(&cmd_plan, "--html shows the kernels of one model; plan the "
		                                  "draft model by its own path");
	if (p->timeline && !p->gpu)
		return opt_usage_error(&cmd_plan, "--timeline needs --gpu NAME");
	p->path = args[0];
	c->seqs = batch ? batch : c->seqs;
	c->context = length ? length : c->context;
	c->quiet = true;
	return 0;
}

/* Create a temporary folder for kernels, unless --artifact names one: the page of --html shows
 * their sources. False: failed. */
static bool
kernel_folder(PlanArgs *p, char *folder, size_t cap)
{
	const char *tmp = getenv("TMPDIR");

	*folder = 0;
	if (!p->html || p->c.out_dir)
		return true;
	int n = snprintf(folder, cap, "%s/llmc-plan.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (n >= (int)cap || !mkdtemp(folder)) {
		*folder = 0;
		return false;
	}
	p->c.out_dir = folder;
	return true;
}

/* Compute memory and fit of an open model, and write the page of --html. */
static llmc_status
measure(PlanArgs *p, const llmc_model *m, llmc_error *err)
{
	llmc_limits *lim = &p->lim;

	*lim = limits_of(&p->c);
	if (lim->n_threads == 0)
		lim->n_threads = 1;
	lim->snapshots = LLMC_DEFAULT_SNAPSHOTS; /* default number of a server */
	lim->marks =
	    lim->seqs < LLMC_DEFAULT_MARKS ? lim->seqs ? lim->seqs : 1 : LLMC_DEFAULT_MARKS;
	llmc_status s = LLMC_OK;
	if (p->fitting) {
		const int64_t gpu_bytes = p->gpu ? p->g.memory : 0;
		s = llmc_fit_limits(m, lim, p->c.memory[0] ? p->c.memory[0] : gpu_bytes, &p->fitted,
		                    err);
		*lim = s == LLMC_OK ? p->fitted.limits : *lim;
	}
	if (s == LLMC_OK)
		s = llmc_memory_for(m, lim, &p->mem, err);
	if (s == LLMC_OK && p->c.memory[0] > 0)
		s = llmc_fit(m, p->c.memory[0], lim, &p->fit, err);
	if (s == LLMC_OK && p->html)
		s = plan_html(p->html, m, &p->mem, p->gpu ? &p->g : NULL, p->c.out_dir, err);
	return s;
}

static int64_t
total(const llmc_memory *mem)
{
	return mem->weights + mem->kv + mem->scratch + mem->state;
}

static llmc_status
print_json(const PlanArgs *p, const llmc_model *m, const llmc_model_info *info, llmc_error *err)
{
	const llmc_memory *mem = &p->mem;
	llmc_status s = LLMC_OK;

	printf("{\"name\":");
	json_text(stdout, info->name, strlen(info->name));
	printf(",\"target\":\"%s\",\"params\":%lld,\"token_bytes\":%lld,\"memory\":{"
	       "\"weights\":%lld,\"kv\":%lld,\"scratch\":%lld,"
	       "\"state\":%lld,\"total\":%lld,\"kv_per_token\":%lld,\"kv_per_seq\":%lld,"
	       "\"kv_saved\":%lld,"
	       "\"kv_snapshots\":%lld,\"kv_exact\":%lld,\"kv_host\":%lld}",
	       info->target, (long long)info->n_params, (long long)info->token_bytes,
	       (long long)mem->weights, (long long)mem->kv, (long long)mem->scratch,
	       (long long)mem->state, (long long)total(mem), (long long)mem->kv_per_token,
	       (long long)mem->kv_per_seq, (long long)mem->kv_saved, (long long)mem->kv_snapshots,
	       (long long)mem->kv_exact, (long long)mem->kv_host);
	if (p->fit >= 0)
		printf(",\"fit\":{\"memory\":%lld,\"seqs\":%d}", (long long)p->c.memory[0], p->fit);
	if (p->fitting) {
		printf(",\"fitted\":{\"context\":%d,\"seqs\":%d,\"kv_tokens\":%lld,\"text\":",
		       p->lim.context, p->lim.seqs, (long long)p->lim.kv_tokens);
		json_text(stdout, p->fitted.text, strlen(p->fitted.text));
		putchar('}');
	}
	if (*p->c.placed.text) {
		const llmc_placement *o = &p->c.placed;
		printf(",\"offload\":{\"gpu_layers\":%d,\"moe_layers\":%d,\"gpu_bytes\":%lld,"
		       "\"host_bytes\":%lld,\"text\":",
		       o->gpu_layers, o->moe_layers, (long long)o->gpu_bytes,
		       (long long)o->host_bytes);
		json_text(stdout, o->text, strlen(o->text));
		putchar('}');
	}
	if (info->ranks > 1)
		s = ranks(m, &p->lim, true, err);
	if (p->gpu && info->two_devices)
		s = predictions_of_two(m, &p->c, &p->g, true, err);
	else if (p->gpu)
		s = predictions(m, p->gpu, p->c.context ? p->c.context : 1024, mem->weights, true,
		                err);
	printf(",\"plan\":%s}\n", llmc_plan_json(m));
	return s;
}

static void
print_memory(const PlanArgs *p, const llmc_model_info *info)
{
	const llmc_memory *mem = &p->mem;
	const llmc_limits *lim = &p->lim;
	char text[32];

	printf("memory for %d sequence%s of %d positions\n", lim->seqs ? lim->seqs : 1,
	       lim->seqs > 1 ? "s" : "",
	       lim->context                                 ? lim->context
	       : info->max_positions < LLMC_DEFAULT_CONTEXT ? info->max_positions
	                                                    : LLMC_DEFAULT_CONTEXT);
	row("weights", mem->weights);
	row("kv", mem->kv);
	row("scratch", mem->scratch);
	row("state", mem->state);
	row("total", total(mem));
	printf("kv per position: %s\n", human_bytes((double)mem->kv_per_token, text));
	if (mem->kv_saved)
		printf("sliding windows save %s of kv\n", human_bytes((double)mem->kv_saved, text));
	if (mem->kv_exact)
		printf("16-bit copies of recent and first positions, part of kv: %s\n",
		       human_bytes((double)mem->kv_exact, text));
	if (mem->kv_per_seq)
		printf("recurrent state per sequence, part of kv: %s\n",
		       human_bytes((double)mem->kv_per_seq, text));
	if (mem->kv_snapshots)
		printf("snapshots of recurrent states, part of kv: %s, %d per sequence for "
		       "shared prefixes (none with --no-prefix-cache, run or chat), and %d "
		       "for draft tokens (none with --speculate 0)\n",
		       human_bytes((double)mem->kv_snapshots, text), lim->snapshots, lim->marks);
	if (mem->kv_host)
		printf("host memory for a server's prefix cache, in addition: %s\n",
		       human_bytes((double)mem->kv_host, text));
}

static llmc_status
print_text(const PlanArgs *p, const llmc_model *m, const llmc_model_info *info, llmc_error *err)
{
	llmc_status s = LLMC_OK;
	char text[32];

	printf("%s\n", llmc_plan_text(m));
	if (p->fitting)
		printf("%s\n", p->fitted.text);
	print_memory(p, info);
	if (info->ranks > 1)
		s = ranks(m, &p->lim, false, err);
	if (p->fit >= 0)
		printf("%s holds %d such sequences\n", human_bytes((double)p->c.memory[0], text),
		       p->fit);
	if (*p->c.placed.text)
		printf("%s\n", p->c.placed.text);
	if (p->gpu && info->two_devices)
		s = predictions_of_two(m, &p->c, &p->g, false, err);
	else if (p->gpu)
		s = predictions(m, p->gpu, p->c.context ? p->c.context : 1024, p->mem.weights,
		                false, err);
	return s;
}

static int
plan(int argc, char **argv)
{
	PlanArgs p = { .g = LLMC_INIT(llmc_gpu),
		       .mem = LLMC_INIT(llmc_memory),
		       .fitted = LLMC_INIT(llmc_fitted),
		       .fit = -1 };
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	char folder[512];
	int code = parse(argc, argv, &p);

	if (code)
		return code;
	if (p.gpu) { /* plan for that GPU */
		if (llmc_gpu_find(p.gpu, &p.g, &err) != LLMC_OK)
			return fail_with(&err);
		p.c.device = p.c.device ? p.c.device : "cuda";
		p.c.arch = p.c.arch ? p.c.arch : p.g.arch;
		p.c.machine_gpu = p.gpu;
	}
	if (!kernel_folder(&p, folder, sizeof folder))
		return opt_usage_error(&cmd_plan,
		                       "--html: cannot create a temporary folder for the kernels; "
		                       "set TMPDIR, or name one with --artifact");
	llmc_status s = open_model(&p.c, p.path, true, &m, &err);
	if (s == LLMC_OK && p.c.draft) {
		llmc_model *draft = NULL;
		s = draft_open(&p.c, m, p.path, NULL, NULL, &draft, &err);
		llmc_close(m);
		m = draft;
	}
	if (s == LLMC_OK)
		s = measure(&p, m, &err);
	if (*folder)
		plan_html_forget(folder);
	if (s == LLMC_OK && p.timeline)
		s = plan_timeline(p.timeline, m, &p.g, p.c.context ? p.c.context : 1024, &err);
	if (s == LLMC_OK && !p.html && !p.timeline) {
		llmc_info(m, &info);
		s = p.c.json ? print_json(&p, m, &info, &err) : print_text(&p, m, &info, &err);
	}
	llmc_close(m);
	free(p.c.set.v);
	return s == LLMC_OK ? 0 : fail_with(&err);
}

const Command cmd_plan = {
	"plan",
	"MODEL [--fit] [--memory SIZE] [--batch B --length L] [--gpu NAME] [--tp N] [--pp N] "
	"[--json] "
	"[--html FILE] [--timeline FILE] [--draft MODEL]",
	"show a model's steps, kernels and memory; predict its speed on a GPU",
	"  llmc plan configs/llama2-70b.yaml --memory 160G --length 4096\n"
	"  llmc plan model.gguf --arch v3\n"
	"  llmc plan model.gguf --fit --memory 24G\n"
	"  llmc plan model-8b.gguf --draft ~/models/EAGLE3-8B\n"
	"  llmc plan configs/llama3-70b.yaml --tp 8\n"
	"  llmc plan model.gguf --offload auto --gpu rtx4090 --memory 24G,64G\n"
	"  llmc plan configs/llama3-8b.yaml --gpu h100\n"
	"  llmc plan configs/llama3-8b.yaml --gpu h100 --html plan.html\n"
	"  llmc plan configs/llama3-8b.yaml --gpu h100 --timeline step.html\n"
	"  llmc plan configs/llama2-70b.yaml --gpu h100 --tp 8\n",
	plan,
};
