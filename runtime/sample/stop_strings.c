#include "runtime/sample/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"

struct Stop {
	size_t n;
	char **word;
	Strbuf held;  /* not returned yet */
	size_t shown; /* bytes at the start of `held` that the last call returned */
	bool found;
	int which;
};

llmc_status
stop_open(const char *const *stops, Stop **out, llmc_error *err)
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
	strbuf_release(&s->held);
	free(s);
}

/* Return the length of the longest suffix that is a proper prefix of a stop string. */
static size_t
may_become(const Stop *s, const char *text, size_t n)
{
	size_t most = 0;

	for (size_t i = 0; i < s->n; i++) {
		size_t len = strlen(s->word[i]);
		size_t k = n < len - 1 ? n : len - 1;
		for (; k > most; k--)
			if (memcmp(text + n - k, s->word[i], k) == 0)
				most = k;
	}
	return most;
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
	const char *first = NULL;
	for (size_t i = 0; !s->found && i < s->n; i++) {
		const char *at =
		    s->held.len ? memmem(s->held.data, s->held.len, s->word[i], strlen(s->word[i]))
		                : NULL;
		if (at && (!first || at < first)) {
			first = at;
			s->which = (int)i;
		}
	}
	*safe = strbuf_str(&s->held);
	if (first) {
		s->found = true;
		*n_safe = (size_t)(first - s->held.data);
		s->shown = s->held.len; /* the rest is never returned */
	} else if (s->found) {
		*n_safe = 0;
	} else {
		*n_safe = s->shown =
		    s->held.len - (last ? 0 : may_become(s, s->held.data, s->held.len));
	}
	*found = s->found;
	return LLMC_OK;
}

int
stop_which(const Stop *s)
{
	return s->which;
}
