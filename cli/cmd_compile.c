/* llmc compile: YAML -> artifact folder. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/cli.h"

static void
log_to_stderr(void *user, int level, const char *line)
{
	const bool *quiet = user;

	if (level == LLMC_LOG_WARNING) {
		progress_end();
		fprintf(stderr, "%s\n", line);
	} else if (level == LLMC_LOG_PROGRESS && !*quiet) {
		progress("%s", line);
	} else if (level == LLMC_LOG_INFO && !*quiet) {
		notice(line);
	}
}

/* Default folder: generated/<name of the file or folder without its ending> */
static void
default_dir(const char *model, char *out, size_t cap)
{
	char stem[256];
	size_t n = strlen(model);

	while (n > 1 && model[n - 1] == '/')
		n--;
	const char *base = memrchr(model, '/', n);
	base = base ? base + 1 : model;
	size_t len = n - (size_t)(base - model);
	const char *dot = memrchr(base, '.', len);
	if (dot && dot > base && strncmp(model, "hf:", 3) != 0)
		len = (size_t)(dot - base);
	snprintf(stem, sizeof stem, "%.*s", (int)len, base);
	for (char *c = stem; *c; c++)
		*c = *c == ':' || *c == '@' ? '-' : *c;
	snprintf(out, cap, "generated/%s", stem);
}

static int
compile(int argc, char **argv)
{
	const char *out = NULL, *target = NULL, *arch = NULL, *dump = NULL, *args[1] = { NULL };
	int32_t tp = 0, pp = 0;
	Common c = { 0 }; /* options of placement */
	OpenOptions own;
	bool aot = false, json = false, quiet = false;
	List set = { 0 };
	llmc_compile_options o = LLMC_INIT(llmc_compile_options);
	const Opt opt[] = {
		{ OPT_TEXT, 'o', "output", "DIR", &out, "folder to write [generated/<model>]" },
		{ OPT_TEXT, 0, "target", "cpu|cuda|ref", &target,
		  "device to compile for; --device of other commands is the same [cpu]" },
		{ OPT_TEXT, 0, "arch", "A,B", &arch,
		  "instruction sets or GPU architectures: generic, v3, vnni, v4, amx, neon, i8mm; "
		  "sm_80, sm_90a, ... [the best that runs here]" },
		{ OPT_FLAG, 0, "aot", NULL, &aot,
		  "build the kernels now and include them in the artifact" },
		{ OPT_LIST, 0, "set", "KEY=VALUE", &set,
		  "override a key of the description; may be repeated" },
		OPT_ALLOW_UNKNOWN_KEYS(o.allow_unknown_keys),
		{ OPT_INT, 0, "pp", "N", &pp,
		  "pipeline stages of contiguous layers, one plan per stage (same as --set "
		  "parallel.pp=) [1]" },
		{ OPT_INT, 0, "tp", "N", &tp,
		  "tensor-parallel ranks, one plan per rank (same as --set parallel.tp=) [1]" },
		OPT_OFFLOAD(c),
		{ OPT_TEXT, 0, "dump", "STAGE", &dump,
		  "print one stage (spec, graph, fuse, order or plan) instead of writing an "
		  "artifact" },
		{ OPT_FLAG, 0, "json", NULL, &json, "{\"artifact\":\"...\",\"seconds\":...}" },
		{ OPT_FLAG, 'q', "quiet", NULL, &quiet, "print no progress" },
	};
	llmc_error err = { 0 };
	char dir[512], tp_text[64], pp_text[64], *dumped = NULL;

	if (OPT_PARSE(&cmd_compile, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_compile, "name a YAML description");
	if (dump && strcmp(dump, "spec") && strcmp(dump, "graph") && strcmp(dump, "fuse") &&
	    strcmp(dump, "order") && strcmp(dump, "plan"))
		return opt_usage_error(
		    &cmd_compile, "--dump %s: expected spec, graph, fuse, order or plan", dump);
	default_dir(args[0], dir, sizeof dir);
	const char **all = calloc(set.n + MAX_OFFLOAD + 3, sizeof *all); /* + tp, pp and the end */
	if (!all)
		return EXIT_MACHINE;
	size_t n = 0;
	c.device = target;
	c.device_option = "--target";
	if (offload_must_choose(&c)) {
		free(all);
		return opt_usage_error(
		    &cmd_compile, "--offload auto chooses by the memory and the bandwidths of "
		                  "the machine that runs the model; `llmc plan --offload auto` "
		                  "shows its choice, for --offload N or --n-cpu-moe N here");
	}
	if (offload_set(&c, &own, all, &n, &err) != LLMC_OK) {
		free(all);
		return fail_with(&err);
	}
	if (tp) {
		snprintf(tp_text, sizeof tp_text, "parallel.tp=%d", tp);
		all[n++] = tp_text;
	}
	if (pp) {
		snprintf(pp_text, sizeof pp_text, "parallel.pp=%d", pp);
		all[n++] = pp_text;
	}
	for (size_t i = 0; i < set.n; i++)
		all[n++] = set.v[i];
	o.target = offload_device(&c);
	o.arch = arch;
	o.set = all;
	o.aot = aot;
	o.dump = dump;
	o.dump_out = dump ? &dumped : NULL;
	o.log = log_to_stderr;
	o.log_user = &quiet;
	double t0 = clock_now();
	llmc_status s = model_path(&args[0], quiet || json, &err);
	if (s == LLMC_OK)
		s = llmc_compile(args[0], out ? out : dir, &o, &err);
	progress_end();
	free(all);
	free(set.v);
	if (s != LLMC_OK)
		return fail_with(&err);
	if (dump) {
		if (json) {
			printf("{\"dump\":");
			json_text(stdout, dumped, strlen(dumped));
			printf("}\n");
		} else {
			fputs(dumped, stdout);
		}
		llmc_free(dumped);
	} else if (json) {
		printf("{\"artifact\":");
		json_text(stdout, out ? out : dir, strlen(out ? out : dir));
		printf(",\"seconds\":%.3f}\n", clock_now() - t0);
	} else if (!quiet) {
		printf("%s: compiled in %.2f s\n", out ? out : dir, clock_now() - t0);
	}
	return 0;
}

const Command cmd_compile = {
	"compile",
	"MODEL.yaml [-o DIR] [--arch A,B] [--aot]",
	"compile a description into kernels and a plan",
	"  llmc compile configs/llama2-70b.yaml\n"
	"  llmc compile model.yaml -o out --arch v3,v4 --aot\n"
	"  llmc compile configs/tiny.yaml --dump fuse\n",
	compile,
};
