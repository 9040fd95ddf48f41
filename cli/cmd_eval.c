/* llmc eval: measure a model against its reference. */
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include "cli/cli.h"

static bool
on_window(void *user, int32_t done, int32_t of, const llmc_interval *kl)
{
	const Common *c = user;

	if (!c->quiet)
		progress(kl->mean > 0 ? "window %d of %d, KL %.4g" : "window %d of %d", done, of,
		         kl->mean);
	return !interrupted();
}

/* Print an interval as JSON; bounds that are NaN (one window) become null. */
static void
json_interval(const char *name, const llmc_interval *v)
{
	printf(",\"%s\":{\"mean\":%.8g,\"low\":", name, v->mean);
	if (isfinite(v->low))
		printf("%.8g,\"high\":%.8g}", v->low, v->high);
	else
		printf("null,\"high\":null}");
}

static void
text_interval(const char *name, const llmc_interval *v, double scale, int digits)
{
	printf("%-22s %10.*f", name, digits, v->mean * scale);
	if (isfinite(v->low))
		printf("   %.*f .. %.*f", digits, v->low * scale, digits, v->high * scale);
	putchar('\n');
}

static void
print_result(const Common *c, const llmc_eval_result *r, bool reference)
{
	if (c->json) {
		printf("{\"tokens\":%lld,\"window\":%d,\"windows\":%d", (long long)r->n_tokens,
		       r->window, r->n_windows);
		json_interval("perplexity", &r->perplexity);
		if (reference) {
			json_interval("reference_perplexity", &r->reference_perplexity);
			json_interval("log_ratio", &r->log_ratio);
			json_interval("kl", &r->kl);
			printf(",\"kl_median\":%.8g,\"kl_90\":%.8g,\"kl_99\":%.8g,\"kl_999\":%.8g,"
			       "\"kl_max\":%.8g",
			       r->kl_median, r->kl_90, r->kl_99, r->kl_999, r->kl_max);
			json_interval("agreement", &r->agreement);
		}
		printf("}\n");
		return;
	}
	printf("%lld tokens in %d windows of %d; means with their 95 %% confidence intervals\n",
	       (long long)r->n_tokens, r->n_windows, r->window);
	text_interval("perplexity", &r->perplexity, 1, 4);
	if (!reference)
		return;
	text_interval("reference's perplexity", &r->reference_perplexity, 1, 4);
	text_interval("ln of their ratio", &r->log_ratio, 1, 5);
	text_interval("KL divergence, nats", &r->kl, 1, 6);
	printf("%-22s median %.6f, 90 %% %.6f, 99 %% %.6f, 99.9 %% %.6f, largest %.6f\n",
	       "  of tokens", r->kl_median, r->kl_90, r->kl_99, r->kl_999, r->kl_max);
	text_interval("same top token, %", &r->agreement, 100, 2);
}

static int
write_plot(const char *path, const char *model, const char *reference, const llmc_eval_result *r)
{
	llmc_error err = { 0 };
	char title[512], *svg = NULL;

	snprintf(title, sizeof title, "%.200s versus %.200s, %lld tokens", model, reference,
	         (long long)r->n_tokens);
	if (llmc_eval_plot(r, title, &svg, &err) != LLMC_OK)
		return fail_with(&err);
	FILE *f = fopen(path, "w");
	bool ok = f && fputs(svg, f) >= 0;
	if (f && fclose(f) != 0)
		ok = false;
	llmc_free(svg);
	if (!ok)
		complain("%s: cannot write the plot", path);
	return ok ? 0 : EXIT_MACHINE;
}

static int
eval(int argc, char **argv)
{
	Common c = { 0 };
	const char *reference = NULL, *file = NULL, *plot = NULL, *args[1] = { NULL };
	llmc_eval_options o = LLMC_INIT(llmc_eval_options);
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Measuring", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "reference", "MODEL16", &reference,
		  "original of a quantised model: adds KL divergence and agreement" },
		{ OPT_TEXT, 'f', "text", "FILE", &file,
		  "corpus to measure on; - is standard input [one that comes with llmc]" },
		{ OPT_INT, 0, "window", "N", &o.window,
		  "tokens per window; windows are independent [512]" },
		{ OPT_INT, 0, "windows", "N", &o.max_windows,
		  "measure only the first N windows [the whole corpus]" },
		{ OPT_TEXT, 0, "plot", "FILE", &plot,
		  "draw the distribution of KL per token as SVG" },
		OPT_FIT(c),
		OPT_COMMON(c),
	};
	llmc_eval_result r = LLMC_INIT(llmc_eval_result);
	llmc_error err = { 0 };
	llmc_model *m = NULL, *ref = NULL;
	char *text = NULL;
	int code = 0;

	if (OPT_PARSE(&cmd_eval, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_eval, NO_MODEL);
	if (plot && !reference)
		return opt_usage_error(&cmd_eval,
		                       "--plot draws the KL divergence and needs --reference");
	if (o.window < 0 || o.window == 1 || o.max_windows < 0)
		return opt_usage_error(&cmd_eval,
		                       "--window takes at least 2 tokens, --windows at least 1");
	if (file && !(text = read_all(file, &o.n_bytes)))
		return EXIT_INPUT;
	o.text = text;
	o.chunk = c.chunk;
	o.n_threads = c.threads;
	o.progress = on_window;
	o.user = &c;
	interrupt_install();
	llmc_status s = open_model(&c, args[0], false, &m, &err);
	if (s == LLMC_OK && reference) {
		/* --weights and --artifact apply to the model, not to the reference */
		Common cr = c;
		cr.weights = cr.out_dir = NULL;
		s = open_model(&cr, reference, false, &ref, &err);
	}
	if (s == LLMC_OK)
		s = llmc_eval(m, ref, &o, &r, &err);
	if (s == LLMC_OK) {
		progress_end();
		print_result(&c, &r, ref != NULL);
		code = plot ? write_plot(plot, args[0], reference, &r) : 0;
	} else {
		code = fail_with(&err);
	}
	llmc_eval_release(&r);
	llmc_close(ref);
	llmc_close(m);
	free(text);
	free(c.set.v);
	return code;
}

const Command cmd_eval = {
	"eval",
	"MODEL [--reference MODEL16] [--text FILE] [--plot FILE]",
	"measure a model: perplexity, and KL divergence from its 16-bit original",
	"  llmc eval model.gguf\n"
	"  llmc eval model-q4_k.gguf --reference model/ --plot kl.svg\n"
	"  llmc eval model-q4_k.gguf --reference model-f16.gguf --text book.txt --windows 40 "
	"--json\n",
	eval,
};
