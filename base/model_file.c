#include "base/model_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

size_t
model_file_part(const char *path, size_t suffix, int *no, int *count)
{
	size_t n = strlen(path) - suffix;
	const char *s = path + n - 15; /* "-00001-of-00003" */

	*no = *count = 1;
	if (n <= 15 || s[0] != '-' || strncmp(s + 6, "-of-", 4) != 0)
		return n;
	for (int i = 1; i < 6; i++)
		if (!isdigit((unsigned char)s[i]) || !isdigit((unsigned char)s[9 + i]))
			return n;
	*no = atoi(s + 1);
	*count = atoi(s + 10);
	return n - 15;
}

bool
model_file_is_gguf(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;

	return ends_with(path, ".gguf") && !strcasestr(base, "mmproj") &&
	       !strcasestr(base, "imatrix");
}

bool
model_file_is_mmproj(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;

	return ends_with(path, ".gguf") && strcasestr(base, "mmproj");
}

/* Return the length of the text that a tower's name, after a prefix "mmproj", shares with the
 * model's name */
static size_t
shared_name(const char *model, const char *name)
{
	size_t n = 0;

	if (strncasecmp(name, "mmproj", 6) == 0)
		name += 6 + strspn(name + 6, "-_.");
	while (model[n] && tolower((unsigned char)model[n]) == tolower((unsigned char)name[n]))
		n++;
	return n;
}

static int
type_order(const char *name)
{
	return strcasestr(name, "bf16")  ? 1
	       : strcasestr(name, "f16") ? 0
	       : strcasestr(name, "f32") ? 2
	                                 : 3;
}

int
model_file_mmproj_order(const char *model, const char *a, const char *b)
{
	const size_t n = shared_name(model, a), k = shared_name(model, b);
	const int type = type_order(a) - type_order(b);

	return n != k ? (n > k ? -1 : 1) : type ? type : strcmp(a, b);
}

/* Is the rest of a name a quantisation format or empty? "Q4_K_M.gguf", "UD-IQ2_M", "bf16", "" */
static bool
is_type(const char *s)
{
	static const char *const prefix[] = { "q",   "iq", "tq",   "ud-",   "i1-",  "f16",
		                              "f32", "fp", "bf16", "mxfp4", "nvfp4" };

	if (!*s || !strcasecmp(s, "gguf"))
		return true;
	for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++) {
		const size_t n = strlen(prefix[i]);
		const bool digit = isdigit((unsigned char)s[n]);
		if (!strncasecmp(s, prefix[i], n) && (digit || n > 2))
			return true;
	}
	return false;
}

static int
folded(char c)
{
	return c && strchr("_.", c) ? '-' : tolower((unsigned char)c);
}

/* Return the length of the common beginning of two names, up to a separator; all separators count
 * as equal */
static size_t
common_name(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] && folded(a[n]) == folded(b[n]))
		n++;
	if (!a[n] && !b[n])
		return n;
	while (n && !strchr("-_.", a[n - 1]))
		n--;
	return n;
}

bool
model_file_mmproj_named(const char *model, const char *name)
{
	if (strncasecmp(name, "mmproj", 6) == 0)
		name += 6 + strspn(name + 6, "-_.");
	const size_t n = common_name(model, name);
	const char *rest = name + n;
	if (n && strncasecmp(rest, "mmproj", 6) == 0)
		rest += 6 + strspn(rest + 6, "-_.");
	return n && is_type(rest);
}

bool
model_file_mmproj_nameless(const char *name)
{
	return strncasecmp(name, "mmproj", 6) == 0 && is_type(name + 6 + strspn(name + 6, "-_."));
}

bool
model_file_same_model(const char *a, const char *b)
{
	int no, count;
	const size_t n = common_name(a, b), na = model_file_part(a, 5, &no, &count),
	             nb = model_file_part(b, 5, &no, &count);

	if (na == nb && strncasecmp(a, b, na) == 0) /* the names differ in the part only */
		return true;
	return n && is_type(a + n) && is_type(b + n);
}
