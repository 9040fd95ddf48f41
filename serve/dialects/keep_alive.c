/* Ollama's keep_alive. A string is a duration of Go's time.ParseDuration. */
#include <stdlib.h>
#include <string.h>

#include "serve/dialects/keep_alive.h"
#include "serve/models/model.h"

/* Parse "1h30m", "-1s" or "0". */
static bool
parse_duration(const char *s, double *seconds)
{
	static const struct {
		const char *name;
		double seconds;
	} unit[] = { { "ms", 1e-3 }, { "us", 1e-6 }, { "ns", 1e-9 },
		     { "h", 3600 },  { "m", 60 },    { "s", 1 } };
	const bool negative = *s == '-';
	double sum = 0;

	s += *s == '-' || *s == '+';
	if (!strcmp(s, "0")) {
		*seconds = 0;
		return true;
	}
	if (!*s)
		return false;
	while (*s) {
		char *end;
		size_t i = 0;
		if (strspn(s, "0123456789.") == 0)
			return false;
		const double x = strtod(s, &end);
		if ((size_t)(end - s) != strspn(s, "0123456789."))
			return false;
		for (; i < sizeof unit / sizeof *unit; i++)
			if (!strncmp(end, unit[i].name, strlen(unit[i].name)))
				break;
		if (i == sizeof unit / sizeof *unit)
			return false;
		sum += x * unit[i].seconds;
		s = end + strlen(unit[i].name);
	}
	*seconds = negative ? -sum : sum;
	return true;
}

bool
keep_alive_read(Req *r, const json_t *body, double *seconds, Problem *p)
{
	const json_t *v = json_object_get(body, "keep_alive");
	const bool given = v && !json_is_null(v);
	double s = -1;

	if (json_is_number(v))
		s = json_number_value(v);
	else if (given && !(json_is_string(v) && parse_duration(json_string_value(v), &s)))
		return problem(p, 400, "keep_alive",
		               "keep_alive: expected seconds or a duration such as \"5m\"; a "
		               "negative one keeps the model loaded, 0 unloads it");
	slot_keep(r, given, s);
	if (seconds)
		*seconds = s;
	return true;
}
