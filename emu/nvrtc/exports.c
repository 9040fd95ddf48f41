/* Finds the kernels of a source, which the emulated library exports. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "build_internal.h"

static bool
word_at(const char *src, size_t i, const char *w)
{
	size_t n = strlen(w);
	return !strncmp(src + i, w, n) &&
	       !(isalnum((unsigned char)src[i + n]) || src[i + n] == '_') &&
	       (!i || !(isalnum((unsigned char)src[i - 1]) || src[i - 1] == '_'));
}

/* Returns the source with comments and strings blanked, so that only code is searched. */
static char *
blank(const char *src)
{
	char *s = strdup(src);

	for (size_t i = 0; s[i];) {
		if (s[i] == '/' && s[i + 1] == '/') {
			while (s[i] && s[i] != '\n')
				s[i++] = ' ';
		} else if (s[i] == '/' && s[i + 1] == '*') {
			while (s[i] && !(s[i] == '*' && s[i + 1] == '/'))
				s[i++] = ' ';
			if (s[i])
				s[i] = s[i + 1] = ' ', i += 2;
		} else if (s[i] == '"' ||
		           (s[i] == '\'' && !(i && isalnum((unsigned char)s[i - 1])))) {
			char q = s[i++];
			while (s[i] && s[i] != q && s[i] != '\n') {
				if (s[i] == '\\' && s[i + 1])
					s[i++] = ' ';
				s[i++] = ' ';
			}
			if (s[i])
				i++;
		} else {
			i++;
		}
	}
	return s;
}

static size_t
skip_parens(const char *s, size_t i)
{
	int depth = 0;

	do {
		depth += s[i] == '(';
		depth -= s[i] == ')';
		i++;
	} while (s[i] && depth);
	return i;
}

void
build_exports(TextBuf *t, const char *source)
{
	char *s = blank(source);

	for (size_t i = 0; s[i]; i++) {
		if (!word_at(s, i, "__global__"))
			continue;
		size_t j = i + 10, bounds = 0, bounds_end = 0;
		size_t line = i;
		while (line && s[line - 1] != '\n')
			line--;
		while (s[line] == ' ' || s[line] == '\t')
			line++;
		if (s[line] == '#')
			continue;
		while (s[j]) {
			while (s[j] && !isalpha((unsigned char)s[j]) && s[j] != '_' &&
			       s[j] != ';' && s[j] != '{')
				j++;
			if (!isalpha((unsigned char)s[j]) && s[j] != '_')
				break;
			size_t w = j;
			while (isalnum((unsigned char)s[j]) || s[j] == '_')
				j++;
			size_t e = j;
			while (isspace((unsigned char)s[j]))
				j++;
			if (s[j] != '(')
				continue;
			if (!strncmp(s + w, "__", 2)) {
				size_t end = skip_parens(s, j);
				if (word_at(s, w, "__launch_bounds__"))
					bounds = j, bounds_end = end;
				j = end;
				continue;
			}
			TextBuf b = { 0 };
			text_put(&b, s + bounds, bounds_end - bounds);
			text_puts(t, bounds_end ? "EMU_EXPORT_BOUNDS(" : "EMU_EXPORT(");
			text_put(t, s + w, e - w);
			if (bounds_end) {
				text_puts(t, ", ");
				text_put(t, b.p + 1, b.n - 2);
			}
			text_puts(t, ")\n");
			free(b.p);
			break;
		}
	}
	free(s);
}
