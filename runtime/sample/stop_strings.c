#include "runtime/sample/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"

struct Stop {
	size_t n;
	char **word;
	Strbuf held;     /* not returned yet */
	size_t shown;    /* bytes at the start of `held` that the last call returned */
	char *ignore[2]; /* marks between which no stop string applies; NULL: none */
	bool inside;     /* the output is between the marks */
	bool found;
	int which;
};

llmc_status
stop_open(const char *const *stops, const char *const *ignore, Stop **out, llmc_error *err)
{
	Stop *s = calloc(1, sizeof *s);
	size_t n = 0;

	*out = NULL;
	while (stops && stops[n]) {
		if (!stops[n][0]) {
			free(s);
			return error_set(err, LLMC_E_INPUT, "stop string %zu is empty", n);
		}
		n++;
	}
	if (!s || (n && !(s->word = calloc(n, sizeof *s->word))))
		goto memory;
	for (; s->n < n; s->n++)
		if (!(s->word[s->n] = strdup(stops[s->n])))
			goto memory;
	for (int i = 0; ignore && i < 2; i++)
		if (!(s->ignore[i] = strdup(ignore[i])))
			goto memory;
	s->inside = ignore && !ignore[0][0];
	s->which = -1;
	*out = s;
	return LLMC_OK;
memory:
	stop_close(s);
	return error_set(err, LLMC_E_MEMORY, "out of memory");
}

void
stop_close(Stop *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n; i++)
		free(s->word[i]);
	free(s->word);
	free(s->ignore[0]);
	free(s->ignore[1]);
	strbuf_release(&s->held);
	free(s);
}

/* Return the length of the longest suffix that is a proper prefix of a word, at least `most`. */
static size_t
suffix_of(const char *word, const char *text, size_t n, size_t most)
{
	size_t len = strlen(word), k = n < len - 1 ? n : len - 1;

	for (; len && k > most; k--)
		if (memcmp(text + n - k, word, k) == 0)
			return k;
	return most;
}

/* Return the length of the longest suffix that may become a stop string or a mark. */
static size_t
may_become(const Stop *s, const char *text, size_t n)
{
	size_t most = 0;

	if (!s->n)
		return 0;
	if (s->inside)
		return suffix_of(s->ignore[1], text, n, 0);
	for (size_t i = 0; i < s->n; i++)
		most = suffix_of(s->word[i], text, n, most);
	return s->ignore[0] ? suffix_of(s->ignore[0], text, n, most) : most;
}

static const char *
find(const char *text, size_t n, const char *word)
{
	return n && word && *word ? memmem(text, n, word, strlen(word)) : NULL;
}

/* Find the first stop string outside of the marks. *from: offset of the output that is not decided
 * yet. */
static const char *
find_stop(Stop *s, size_t *from)
{
	for (;;) {
		const char *text = s->held.data + *from, *first = NULL;
		size_t left = s->held.len - *from;
		const char *mark = find(text, left, s->ignore[s->inside]);
		for (size_t i = 0; !s->inside && i < s->n; i++) {
			const char *at = find(text, left, s->word[i]);
			if (at && (!first || at < first)) {
				first = at;
				s->which = (int)i;
			}
		}
		if (!mark || (first && first < mark))
			return first;
		*from = (size_t)(mark - s->held.data) + strlen(s->ignore[s->inside]);
		s->inside = !s->inside;
		s->which = -1;
	}
}

llmc_status
stop_feed(Stop *s, const char *text, size_t n, bool last, const char **safe, size_t *n_safe,
          bool *found, llmc_error *err)
{
	/* drop what the last call returned */
	if (s->shown) {
		memmove(s->held.data, s->held.data + s->shown, s->held.len - s->shown);
		s->held.len -= s->shown;
		s->shown = 0;
	}
	if (!s->found)
		strbuf_add(&s->held, text, n);
	if (s->held.failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	size_t from = 0;
	const char *first = s->found || !s->n || !s->held.len ? NULL : find_stop(s, &from);
	*safe = strbuf_str(&s->held);
	if (first) {
		s->found = true;
		*n_safe = (size_t)(first - s->held.data);
		s->shown = s->held.len; /* the rest is never returned */
	} else if (s->found) {
		*n_safe = 0;
	} else {
		*n_safe = s->shown =
		    s->held.len -
		    (last ? 0 : may_become(s, strbuf_str(&s->held) + from, s->held.len - from));
	}
	*found = s->found;
	return LLMC_OK;
}

int
stop_which(const Stop *s)
{
	return s->which;
}
