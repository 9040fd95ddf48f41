/* llmc quantize: converts a 16-bit GGUF or folder to fewer bits per weight. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct Output {
	bool quiet, json;
	char *chosen; /* list of types that --bits selected, for the output */
	size_t n_chosen;
	FILE *to; /* memory stream that writes `chosen` */
} Output;

static bool
on_progress(void *user, const char *doing, int64_t done, int64_t of)
{
	const Output *o = user;

	if (!o->quiet && doing)
		progress("%3.0f %%  %s", 100.0 * (double)done / (double)(of ? of : 1), doing);
	else if (!o->quiet)
		progress("calibrating, window %lld of %lld", (long long)done, (long long)of);
	return !interrupted();
}

static void
on_choice(void *user, const char *tensor, const char *type, double bits, double error, double cost)
{
	Output *o = user;

	fflush(o->to);
	if (o->json)
		fprintf(o->to,
		        "%s{\"name\":\"%s\",\"type\":\"%s\",\"bits\":%.6g,\"error\":%.6g,\"cost\":%"
		        ".6g}",
		        o->n_chosen ? "," : "", tensor, type, bits, error, cost);
	else
		fprintf(o->to, "%-40s %-7s %7.4g bits, error %.2g, cost %.2g\n", tensor, type, bits,
		        error, cost);
}

static void
on_log(void *user, int level, const char *line)
{
	const Output *o = user;

	if (level == LLMC_LOG_WARNING)
		complain("%s", line);
	else if (level == LLMC_LOG_PROGRESS && !o->quiet)
		progress("%s", line);
	else if (level == LLMC_LOG_INFO && !o->quiet)
		notice(line);
}

static int
quantize(int argc, char **argv)
{
	llmc_quantize_options o = LLMC_INIT(llmc_quantize_options);
	const char *file = NULL, *args[2] = { NULL };
	Output to = { 0 };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Types", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "type", "TYPE", &o.type,
		  "type of matrices. GGUF output: q4_k, q5_k, q6_k, q8_0, q3_k, q2_k, iq4_xs, "
		  "iq4_nl, mxfp4, q4_0, q4_1, q5_0, q5_1, f16, bf16 [q4_k]; folder output: int4, "
		  "int8, fp8, mxfp4 [int4]" },
		{ OPT_FLOAT, 0, "bits", "N", &o.bits,
		  "instead of a type: average bits per weight; each matrix gets the type with the "
		  "least measured cost within this budget [off]" },
		{ OPT_TEXT, 0, "head", "TYPE", &o.head,
		  "type of the LM head and of a tied embedding [q6_k; with --bits selected like "
		  "the others]" },
		{ OPT_INT, 0, "group", "N", &o.group,
		  "int4: columns per scale, 32 or 128 [128 if it divides the columns of all "
		  "matrices]" },
		{ OPT_GROUP, 0, "Method", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "method", "gptq|awq|weighted|nearest", &o.method,
		  "gptq: errors compensated on a calibration corpus; awq: column importance folded "
		  "into norms; weighted: importance only; nearest: rounding [gptq]" },
		{ OPT_TEXT, 'f', "calibration", "FILE", &file,
		  "calibration corpus; - is standard input [one that comes with llmc]" },
		{ OPT_INT, 0, "window", "N", &o.window,
		  "tokens per window of the corpus [512, or the positions of the model]" },
		{ OPT_INT, 0, "windows", "N", &o.n_windows, "use the first N windows [64]" },
		{ OPT_FLOAT, 0, "damp", "X", &o.damp,
		  "fraction added to the diagonal of Hessians [6 * columns / tokens, within 0.03 "
		  ".. 1]" },
		{ OPT_TEXT, 0, "imatrix", "FILE", &o.imatrix,
		  "importance matrix, in llama.cpp's .dat or GGUF form [computed from the "
		  "corpus]" },
		{ OPT_TEXT, 0, "imatrix-out", "FILE", &o.imatrix_out,
		  "write the computed importance matrix; .dat is llama.cpp's older form" },
		{ OPT_GROUP, 0, "Machine", NULL, NULL, NULL },
		{ OPT_BYTES, 0, "hessian-memory", "SIZE", &o.hessian_bytes,
		  "memory for Hessians; one layer is always allowed, and enough [512M]" },
		{ OPT_INT, 't', "threads", "N", &o.n_threads,
		  "number of threads [physical cores within quota and affinity]" },
		{ OPT_GROUP, 0, "Output", NULL, NULL, NULL },
		{ OPT_FLAG, 0, "json", NULL, &to.json, "print one JSON document and nothing else" },
		{ OPT_FLAG, 'q', "quiet", NULL, &to.quiet, "print no progress" },
	};
	llmc_quantize_result r = LLMC_INIT(llmc_quantize_result);
	llmc_error err = { 0 };
	char *text = NULL, in_size[32], out_size[32];

	if (OPT_PARSE(&cmd_quantize, opt, argc, argv, args) < 2)
		return opt_usage_error(
		    &cmd_quantize, "name a 16-bit GGUF or folder, and the file or folder to write");
	if (file && !(text = read_all(file, &o.n_bytes)))
		return EXIT_INPUT;
	o.text = text;
	o.progress = on_progress;
	o.log = on_log;
	o.chose = on_choice;
	o.user = o.log_user = &to;
	if (!(to.to = open_memstream(&to.chosen, &to.n_chosen))) {
		free(text);
		complain("out of memory");
		return EXIT_MACHINE;
	}
	interrupt_install();
	llmc_status s = model_path(&args[0], to.quiet || to.json, &err);
	if (s == LLMC_OK)
		s = llmc_quantize(args[0], args[1], &o, &r, &err);
	free(text);
	fclose(to.to);
	if (s != LLMC_OK) {
		free(to.chosen);
		return fail_with(&err);
	}
	progress_end();
	if (to.json)
		printf("{\"tensors\":%d,\"quantized\":%d,\"resumed\":%d,\"in_bytes\":%lld,\"out_"
		       "bytes\":%lld,\"bits\":%.6g,\"calibrate_s\":%.3f,\"seconds\":%.3f,\"types\":"
		       "[%s]}\n",
		       r.n_tensors, r.n_quantized, r.n_resumed, (long long)r.in_bytes,
		       (long long)r.out_bytes, r.bits, r.calibrate_s, r.seconds, to.chosen);
	else
		printf("%s%s: %d of %d tensors at %.2f bits per weight, %s from %s, %.1f s (%.1f s "
		       "calibrating)\n",
		       to.chosen, args[1], r.n_quantized, r.n_tensors, r.bits,
		       human_bytes((double)r.out_bytes, out_size),
		       human_bytes((double)r.in_bytes, in_size), r.seconds, r.calibrate_s);
	free(to.chosen);
	return 0;
}

const Command cmd_quantize = {
	"quantize",
	"IN OUT [--type q4_k] [--method gptq]",
	"quantise a model to 2 to 8 bits, with errors compensated on a calibration corpus",
	"  llmc quantize model-f16.gguf model-q4_k.gguf\n"
	"  llmc quantize model-f16.gguf model-4.25.gguf --bits 4.25\n"
	"  llmc quantize model16/ model-q4_k.gguf                 a folder as a GGUF, with its "
	"tokenizer\n"
	"  llmc quantize model16/ model-bf16.gguf --type bf16\n"
	"  llmc quantize model16/ model-int4/ --type int4 --group 32\n"
	"  llmc quantize model-f16.gguf model-q5_k.gguf --type q5_k --calibration mine.txt\n"
	"  llmc quantize model-f16.gguf model-q4_0.gguf --type q4_0 --method weighted --imatrix "
	"imatrix.dat\n",
	quantize,
};
