/* Renders diagnostics: file:line:column, the source line and a caret. It also counts them and stops
 * after twenty errors. */
#include "formats/diag.h"

#include <stdio.h>
#include <string.h>

enum {
	MAX_LINE_BYTES = 160
}; /* bytes shown of a source line; longer lines are cut around the caret */

static void
release(void *d)
{
	strbuf_release(&((Diag *)d)->text);
}

void
diag_init(Diag *d, Arena *perm)
{
	memset(d, 0, sizeof *d);
	d->perm = perm;
	arena_defer(perm, release, d);
}

/* Returns the offset of the given line, or size if the source has fewer lines. */
static size_t
line_start(const SourceText *src, int line)
{
	size_t at = 0;

	for (int n = 1; n < line && at < src->size; n++) {
		const char *nl = memchr(src->text + at, '\n', src->size - at);
		if (!nl)
			return src->size;
		at = (size_t)(nl - src->text) + 1;
	}
	return at;
}

static bool
continues(char c)
{
	return ((unsigned char)c & 0xc0) == 0x80;
}

/* Returns the length in bytes of the UTF-8 character at p (at most n), or 0 if it is invalid. */
static size_t
character(const char *p, size_t n)
{
	unsigned char c = (unsigned char)*p;
	size_t k = c < 0x80                ? 1
	           : c >= 0xc2 && c < 0xe0 ? 2
	           : c >= 0xe0 && c < 0xf0 ? 3
	           : c >= 0xf0 && c < 0xf5 ? 4
	                                   : 0;

	if (k > n)
		return 0;
	for (size_t i = 1; i < k; i++)
		if (!continues(p[i]))
			return 0;
	return k;
}

/* Columns count characters. Tabs are copied to the caret line, so that the caret stays aligned. */
static void
show_line(Strbuf *out, Loc loc)
{
	size_t at = line_start(loc.src, loc.line), end = at;

	if (at >= loc.src->size)
		return;
	while (end < loc.src->size && loc.src->text[end] != '\n' && loc.src->text[end] != '\r')
		end++;
	size_t caret = at;
	for (int col = 1; col < loc.col && caret < end; col++)
		for (caret++; caret < end && continues(loc.src->text[caret]); caret++)
			;
	if (end - at > MAX_LINE_BYTES) {
		size_t keep = MAX_LINE_BYTES / 2;
		if (caret - at > keep)
			at = caret - keep;
		if (end - caret > keep)
			end = caret + keep;
		while (at < caret && continues(loc.src->text[at]))
			at++;
		while (end < loc.src->size && end > caret && continues(loc.src->text[end]))
			end--;
	}
	strbuf_printf(out, "%5d | ", loc.line);
	for (size_t i = at, k; i < end; i += k ? k : 1) {
		unsigned char c = (unsigned char)loc.src->text[i];
		k = character(loc.src->text + i, end - i);
		if (!k || (c < 32 && c != '\t') || c == 127)
			strbuf_putc(out, '?');
		else
			strbuf_add(out, loc.src->text + i, k);
	}
	strbuf_puts(out, "\n      | ");
	for (size_t i = at; i < caret; i++)
		if (loc.src->text[i] == '\t')
			strbuf_putc(out, '\t');
		else if (!continues(loc.src->text[i]))
			strbuf_putc(out, ' ');
	strbuf_puts(out, "^\n");
}

/* Messages quote names from files. Escape control bytes (terminal sequences) and invalid UTF-8. */
static void
clean(Strbuf *b, size_t at)
{
	for (size_t k; at < b->len; at += k ? k : 1) {
		unsigned char c = (unsigned char)b->data[at];
		k = character(b->data + at, b->len - at);
		if (!k || (c < 32 && c != '\t' && c != '\n') || c == 127)
			b->data[at] = '?';
	}
}

static void
add_message(Diag *d, Loc loc, const char *kind, const char *fmt, va_list ap)
{
	if (loc.src) {
		strbuf_puts(&d->text, loc.src->name);
		if (loc.line > 0)
			strbuf_printf(&d->text, ":%d:%d", loc.line, loc.col);
		strbuf_puts(&d->text, ": ");
	}
	strbuf_printf(&d->text, "%s: ", kind);
	size_t at = d->text.len;
	strbuf_vprintf(&d->text, fmt, ap);
	clean(&d->text, at);
	strbuf_putc(&d->text, '\n');
	if (loc.src && loc.line > 0 && strcmp(kind, "note") != 0)
		show_line(&d->text, loc);
}

void
err_at(Diag *d, Loc loc, const char *fmt, ...)
{
	va_list ap;

	if (++d->n_error > DIAG_MAX_ERRORS) {
		if (d->n_error == DIAG_MAX_ERRORS + 1)
			strbuf_printf(&d->text, "too many errors: only the first %d are shown\n",
			              DIAG_MAX_ERRORS);
		return;
	}
	va_start(ap, fmt);
	add_message(d, loc, "error", fmt, ap);
	va_end(ap);
}

void
warn_at(Diag *d, Loc loc, const char *fmt, ...)
{
	va_list ap;

	if (++d->n_warning > DIAG_MAX_ERRORS) {
		if (d->n_warning == DIAG_MAX_ERRORS + 1)
			strbuf_printf(&d->text, "too many warnings: only the first %d are shown\n",
			              DIAG_MAX_ERRORS);
		return;
	}
	va_start(ap, fmt);
	add_message(d, loc, "warning", fmt, ap);
	va_end(ap);
}

void
note_at(Diag *d, Loc loc, const char *fmt, ...)
{
	va_list ap;

	/* a note belongs to the diagnostic before it: skip the note if that diagnostic was not
	 * shown */
	if (d->n_error > DIAG_MAX_ERRORS || d->n_warning > DIAG_MAX_ERRORS)
		return;
	va_start(ap, fmt);
	add_message(d, loc, "note", fmt, ap);
	va_end(ap);
}

llmc_status
diag_error(const Diag *d, llmc_error *err)
{
	return error_set(err, d->fault ? LLMC_E_BUG : LLMC_E_INPUT, "%s", strbuf_str(&d->text));
}

void
diag_bug(Diag *d, Loc loc, const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	d->n_error++;
	d->fault = true;
	va_start(ap, fmt);
	add_message(d, loc, "fault of llmc", fmt, ap);
	va_end(ap);
	strbuf_printf(&d->text,
	              "(raised at %s:%d; please report it with the description that caused it)\n",
	              file, line);
	longjmp(d->bug, 1);
}
