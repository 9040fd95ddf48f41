/* Draws the KL divergence per token as SVG: x is the divergence on a log scale, y the share of
 * tokens above it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/strbuf.h"

enum {
	WIDTH = 720,
	HEIGHT = 420,
	LEFT = 64,
	RIGHT = 20,
	TOP = 44,
	BOTTOM = 52,
	LEAST = -7,
	MOST = 2
}; /* powers of ten on x */

static double
x_of(double kl)
{
	double e = kl > 0 ? log10(kl) : LEAST;
	e = e < LEAST ? LEAST : e > MOST ? MOST : e;
	return LEFT + (e - LEAST) / (MOST - LEAST) * (WIDTH - LEFT - RIGHT);
}

static double
y_of(double share)
{
	return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
}

static void
text_add(Strbuf *b, double x, double y, const char *anchor, const char *text)
{
	strbuf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	for (const char *p = text; *p; p++) {
		if (*p == '<' || *p == '&')
			strbuf_puts(b, *p == '<' ? "&lt;" : "&amp;");
		else if ((unsigned char)*p >= 32)
			strbuf_putc(b, *p);
	}
	strbuf_puts(b, "</text>\n");
}

/* Draw a vertical line with a label. Labels that would overlap get different heights. */
static void
mark(Strbuf *b, double kl, int row, const char *name)
{
	Strbuf label = { 0 };

	strbuf_printf(&label, "%s %.2g", name, kl);
	strbuf_printf(b,
	              "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#b33\" "
	              "stroke-dasharray=\"4 3\"/>\n",
	              x_of(kl), x_of(kl), TOP, HEIGHT - BOTTOM);
	text_add(b, x_of(kl) + 4, TOP + 12 + 15 * row, "start", strbuf_str(&label));
	strbuf_release(&label);
}

llmc_status
llmc_eval_plot(const llmc_eval_result *res, const char *title, char **svg, llmc_error *err)
{
	Strbuf b = { 0 };
	const int64_t n = res->n_tokens;

	*svg = NULL;
	if (!res->kl_sorted || n < 1 || !res->reference_perplexity.mean)
		return error_set(err, LLMC_E_INPUT, "a plot needs a reference");
	strbuf_printf(&b,
	              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
	              "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
	              "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
	              WIDTH, HEIGHT, WIDTH, HEIGHT);
	text_add(&b, LEFT, 24, "start", title);
	for (int e = LEAST; e <= MOST; e++) {
		Strbuf label = { 0 };
		strbuf_printf(&label, "%g", pow(10, e));
		strbuf_printf(
		    &b, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#ddd\"/>\n",
		    x_of(pow(10, e)), x_of(pow(10, e)), TOP, HEIGHT - BOTTOM);
		text_add(&b, x_of(pow(10, e)), HEIGHT - BOTTOM + 16, "middle", strbuf_str(&label));
		strbuf_release(&label);
	}
	for (int i = 0; i <= 4; i++) {
		Strbuf label = { 0 };
		strbuf_printf(&label, "%d %%", 25 * i);
		strbuf_printf(
		    &b, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n",
		    LEFT, WIDTH - RIGHT, y_of(i / 4.0), y_of(i / 4.0));
		text_add(&b, LEFT - 6, y_of(i / 4.0) + 4, "end", strbuf_str(&label));
		strbuf_release(&label);
	}
	text_add(&b, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "middle",
	         "KL divergence of a token from the reference, nats");
	text_add(&b, LEFT, TOP - 8, "start", "share of tokens above");
	strbuf_puts(&b,
	            "<polyline fill=\"none\" stroke=\"#2457c5\" stroke-width=\"1.8\" points=\"");
	int64_t steps = n < 400 ? n : 400;
	for (int64_t i = 0; i <= steps; i++) {
		int64_t at = i * n / steps;
		strbuf_printf(&b, "%.1f,%.1f ", x_of((double)res->kl_sorted[at < n ? at : n - 1]),
		              y_of(1 - (double)at / (double)n));
	}
	strbuf_puts(&b, "\"/>\n");
	mark(&b, res->kl_median, 0, "median");
	mark(&b, res->kl.mean, 1, "mean");
	mark(&b, res->kl_99, 2, "99 %");
	strbuf_puts(&b, "</svg>\n");
	*svg = b.failed ? NULL : strdup(strbuf_str(&b));
	strbuf_release(&b);
	return *svg ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory for the plot");
}
