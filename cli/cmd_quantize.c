/* llmc quantize: a 16-bit GGUF or folder in fewer bits. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct Output {
	bool quiet, json;
	char *chosen; /* what --bits chose, as it is printed */
	size_t n_chosen;
	FILE *to; /* chosen grows by it */
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
		fprintf(o->to, "%-40s %-7s %7.4g bits, error %.2g, costs %.2g\n", tensor, type,
		        bits, error, cost);
}

static void
on_log(void *user, int level, const char *line)
{
	const Output *o = user;

	if (level == LLMC_LOG_WARNING)
		complain("%s", line);
	else if (level == LLMC_LOG_INFO && !o->quiet)
		progress("%s", line);
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
		  "of matrices: q4_k, q5_k, q6_k, q8_0, q3_k, q2_k, iq4_xs, iq4_nl, mxfp4, q4_0, "
		  "q4_1, q5_0, q5_1, f16, bf16 [q4_k]; of a folder that becomes a folder: int4, "
		  "int8, fp8, mxfp4 [int4]" },
		{ OPT_FLOAT, 0, "bits", "N", &o.bits,
		  "instead of a type: bits a weight that all matrices may have together; each gets "
		  "what the measured cost of its errors asks for" },
		{ OPT_TEXT, 0, "head", "TYPE", &o.head,
		  "of the output's matrix, and of an embedding that is the output's too [q6_k; "
		  "with --bits chosen, too]" },
		{ OPT_INT, 0, "group", "N", &o.group,
		  "int4: columns that share a scale, 32 or 128 [128 where all matrices have whole "
		  "ones]" },
		{ OPT_GROUP, 0, "Method", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "method", "gptq|awq|weighted|nearest", &o.method,
		  "errors compensated by what a text shows, importance of columns with factors "
		  "folded into norms, importance alone, or neither [gptq]" },
		{ OPT_TEXT, 'f', "calibration", "FILE", &file,
		  "text to calibrate with; - is standard input [one that comes with llmc]" },
		{ OPT_INT, 0, "window", "N", &o.window, "tokens of it seen together [512]" },
		{ OPT_INT, 0, "windows", "N", &o.n_windows, "use the first N windows [64]" },
		{ OPT_FLOAT, 0, "damp", "X", &o.damp,
		  "share by which the diagonal of Hessians grows [6 * columns / tokens, 0.03 to "
		  "1]" },
		{ OPT_TEXT, 0, "imatrix", "FILE", &o.imatrix,
		  "importance from a file, llama.cpp's .dat or GGUF [from the text]" },
		{ OPT_TEXT, 0, "imatrix-out", "FILE", &o.imatrix_out,
		  "write what the text gave; .dat is llama.cpp's older form" },
		{ OPT_GROUP, 0, "Machine", NULL, NULL, NULL },
		{ OPT_BYTES, 0, "hessian-memory", "SIZE", &o.hessian_bytes,
		  "for Hessians of layers taken together; one layer is the least, and enough "
		  "[512M]" },
		{ OPT_INT, 't', "threads", "N", &o.n_threads,
		  "threads [real cores within quota and affinity]" },
		{ OPT_GROUP, 0, "Output", NULL, NULL, NULL },
		{ OPT_FLAG, 0, "json", NULL, &to.json,
		  "one JSON document on stdout, nothing else" },
		{ OPT_FLAG, 'q', "quiet", NULL, &to.quiet, "no progress" },
	};
	llmc_quantize_result r = LLMC_INIT(llmc_quantize_result);
	llmc_error err = { 0 };
	char *text = NULL, in_size[32], out_size[32];

	if (OPT_PARSE(&cmd_quantize, opt, argc, argv, args) < 2)
		return opt_usage_error(
		    &cmd_quantize, "name a 16-bit GGUF or folder, and the file or folder to make");
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
	llmc_status s = llmc_quantize(args[0], args[1], &o, &r, &err);
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
		printf("%s%s: %d of %d tensors at %.2f bits a weight, %s from %s, %.1f s (%.1f s "
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
	"make a model smaller: blocks of 2 to 8 bits, errors compensated by a text",
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
