/* llmc plan: what will run, and what it will cost. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static void
row(const char *name, int64_t bytes)
{
	char text[32];

	printf("  %-10s %14lld  %s\n", name, (long long)bytes, human_bytes((double)bytes, text));
}

static int
plan(int argc, char **argv)
{
	Common c = { 0 };
	int32_t batch = 0, length = 0;
	const char *args[1] = { NULL };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Plan", NULL, NULL, NULL },
		{ OPT_INT, 'b', "batch", "B", &batch, "sequences (same as --seqs)" },
		{ OPT_INT, 'l', "length", "L", &length, "positions of each (same as --context)" },
		OPT_COMMON(c),
	};
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	llmc_memory mem = LLMC_INIT(llmc_memory);
	int32_t fit = -1;
	char text[32];

	if (OPT_PARSE(&cmd_plan, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_plan, "name a model");
	if (batch)
		c.seqs = batch;
	if (length)
		c.context = length;
	c.quiet = true;
	if (open_model(&c, args[0], true, &m, &err) != LLMC_OK)
		return fail_with(&err);
	llmc_limits lim = limits_of(&c);
	if (lim.n_threads == 0)
		lim.n_threads = 1;
	llmc_status s = llmc_memory_for(m, &lim, &mem, &err);
	if (s == LLMC_OK && c.memory > 0)
		s = llmc_fit(m, c.memory, &lim, &fit, &err);
	if (s != LLMC_OK) {
		llmc_close(m);
		return fail_with(&err);
	}
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_info(m, &info);
	int64_t sum = mem.weights + mem.kv + mem.scratch + mem.state;
	if (c.json) {
		printf("{\"name\":");
		json_text(stdout, info.name, strlen(info.name));
		printf(",\"target\":\"%s\",\"params\":%lld,\"token_bytes\":%lld,\"memory\":{\"weights\":%lld,\"kv\":%lld,\"scratch\":%lld,"
		       "\"state\":%lld,\"total\":%lld,\"kv_per_token\":%lld}",
		       info.target, (long long)info.n_params, (long long)info.token_bytes, (long long)mem.weights, (long long)mem.kv,
		       (long long)mem.scratch, (long long)mem.state, (long long)sum, (long long)mem.kv_per_token);
		if (fit >= 0)
			printf(",\"fit\":{\"memory\":%lld,\"seqs\":%d}", (long long)c.memory, fit);
		printf(",\"plan\":%s}\n", llmc_plan_json(m));
	} else {
		printf("%s\n", llmc_plan_text(m));
		printf("memory for %d sequence%s of %d positions\n", lim.seqs ? lim.seqs : 1, lim.seqs > 1 ? "s" : "",
		       lim.context ? lim.context : info.max_positions < 4096 ? info.max_positions : 4096);
		row("weights", mem.weights);
		row("kv", mem.kv);
		row("scratch", mem.scratch);
		row("state", mem.state);
		row("total", sum);
		printf("kv per position: %s\n", human_bytes((double)mem.kv_per_token, text));
		if (fit >= 0)
			printf("in %s fit %d such sequences\n", human_bytes((double)c.memory, text), fit);
	}
	llmc_close(m);
	free(c.set.v);
	return 0;
}

const Command cmd_plan = {
	"plan", "MODEL [--memory SIZE] [--batch B --length L] [--json]", "show the steps, kernels and bytes of a model",
	"  llmc plan configs/llama2-70b.yaml --memory 160G --length 4096\n"
	"  llmc plan model.gguf --arch v3\n",
	plan,
};
