/* Tokens of fill-in-the-middle: those that the keys of a GGUF file name, otherwise those of a row
 * of fim.def */
#include <string.h>

#include "base/sized_struct.h"
#include "text/text.h"

typedef struct FimRow {
	bool suffix_first;
	const char *prefix, *suffix, *middle, *repo, *file, *ends;
} FimRow;

enum { PREFIX, SUFFIX };
#define FIM(first, prefix, suffix, middle, repo, file, ends)                                       \
	{ first == SUFFIX, prefix, suffix, middle, repo, file, ends },
static const FimRow row[] = {
#include "text/fim.def"
};
#undef FIM

enum { N_ROW = sizeof row / sizeof *row };

static int32_t
find(const llmc_tokenizer *t, const char *name)
{
	return *name ? text_find(t, name, strlen(name)) : -1;
}

static void
add_stop(llmc_fim *f, int32_t id)
{
	for (int32_t i = 0; i < f->n_stop; i++)
		if (f->stop[i] == id)
			return;
	if (id >= 0 && f->n_stop < (int32_t)(sizeof f->stop / sizeof *f->stop))
		f->stop[f->n_stop++] = id;
}

static void
add_ends(const llmc_tokenizer *t, llmc_fim *f, const char *names)
{
	for (size_t n; *names; names += n + (names[n] == ' ')) {
		n = strcspn(names, " ");
		add_stop(f, text_find(t, names, n));
	}
}

/* Returns the row whose prefix token is `id`. id -1: the first row all of whose tokens are in the
 * vocabulary. */
static const FimRow *
row_of(const llmc_tokenizer *t, int32_t id)
{
	for (const FimRow *r = row; r < row + N_ROW; r++) {
		int32_t prefix = find(t, r->prefix);
		if (prefix < 0 || (id >= 0 && prefix != id))
			continue;
		if (id >= 0 ||
		    (find(t, r->suffix) >= 0 && (!*r->middle || find(t, r->middle) >= 0)))
			return r;
	}
	return NULL;
}

bool
llmc_fim_tokens(const llmc_tokenizer *t, llmc_fim *out)
{
	const FimRow *r =
	    t->fim.prefix >= 0 && t->fim.suffix >= 0 ? row_of(t, t->fim.prefix) : row_of(t, -1);
	llmc_fim f = t->fim;

	if ((f.prefix < 0 || f.suffix < 0) && !r)
		return false;
	if (f.prefix < 0 || f.suffix < 0) {
		f.prefix = find(t, r->prefix);
		f.suffix = find(t, r->suffix);
		f.middle = find(t, r->middle);
	}
	if (r) {
		f.suffix_first = r->suffix_first;
		f.repo = f.repo >= 0 ? f.repo : find(t, r->repo);
		f.file = f.file >= 0 ? f.file : find(t, r->file);
		add_ends(t, &f, r->ends);
	}
	add_stop(&f, f.prefix);
	add_stop(&f, f.suffix);
	add_stop(&f, f.middle);
	add_stop(&f, f.repo);
	add_stop(&f, f.file);
	SIZED_GIVE(out, f);
	return true;
}
