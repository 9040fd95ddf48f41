/* Untrusted chat templates: a template that runs forever, uses up memory or has a mistake ends with
 * a message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "text/text.h"

static llmc_status
render(const char *source, const char *vars, char **out, llmc_error *err)
{
	size_t n;

	*err = (llmc_error){ 0 };
	return text_render(source, strlen(source), "t", vars, out, &n, err);
}

static void
gives(const char *source, const char *vars, const char *want)
{
	char *out;
	llmc_error err;

	llmc_status status = render(source, vars, &out, &err);
	if (status != LLMC_OK)
		fail_msg("%s: %s", source, err.text);
	assert_string_equal(out, want);
	free(out);
}

static void
refused(const char *source, const char *want)
{
	char *out;
	llmc_error err;

	llmc_status status = render(source, NULL, &out, &err);
	if (status == LLMC_OK)
		fail_msg("%.200s: gave %.200s", source, out);
	assert_int_equal(status, LLMC_E_INPUT);
	assert_null(out);
	if (!strstr(err.text, want))
		fail_msg("%.200s: wanted '%s' in '%s'", source, want, err.text);
}

static char *
repeated(const char *head, const char *part, int n, const char *tail)
{
	size_t h = strlen(head), p = strlen(part), t = strlen(tail);
	char *s = malloc(h + p * (size_t)n + t + 1);

	assert_non_null(s);
	memcpy(s, head, h);
	for (int i = 0; i < n; i++)
		memcpy(s + h + p * (size_t)i, part, p);
	memcpy(s + h + p * (size_t)n, tail, t + 1);
	return s;
}

static void
refused_repeated(const char *head, const char *part, int n, const char *tail, const char *want)
{
	char *s = repeated(head, part, n, tail);
	refused(s, want);
	free(s);
}

static void
endless(void **state)
{
	(void)state;
	refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
	        "the template takes more than");
	refused(
	    "{% set x = range(90000) %}{% for a in x %}{% if 'z' in x %}{% endif %}{% endfor %}",
	    "steps");
	refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper");
	refused("{% macro a(x) %}{{ b(x) }}{% endmacro %}{% macro b(x) %}{{ a(x) }}{% endmacro "
	        "%}{{ a(1) }}",
	        "nested deeper");
	refused("{{ range(100001) }}", "Range too big");
	refused("{{ range(0, 9223372036854775807, 1) }}", "Range too big");
	refused("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "nested deeper");
	refused("{% set ns = namespace() %}{% set ns.l = [1] %}{% for i in range(400) %}{% set "
	        "ns.l = [ns.l] %}{% endfor %}"
	        "{{ ns.l | tojson }}",
	        "nested deeper");
}

/* Every method, filter, test and comparison counts its work on long strings, lists and mappings. */
static void
operations_on_long_values(void **state)
{
	static const char *const work[] = {
		"s.strip('a')",
		"s.lstrip('xya')",
		"s.rstrip('a')",
		"sp.strip()",
		"sp.split()",
		"sp.rsplit()",
		"s.split('b')",
		"s.rsplit('b')",
		"s.rsplit(tail)",
		"s.splitlines()",
		"s.startswith(s)",
		"s.endswith(s ~ '')",
		"s.upper()",
		"s.lower()",
		"s.title()",
		"s.capitalize()",
		"s.replace('b', '')",
		"s.replace('', 'c', 1)",
		"s.find('b')",
		"s.rfind(tail)",
		"s.rfind('b')",
		"s.count('b')",
		"''.join(e)",
		"s.format()",
		"s.isdigit()",
		"s.isalpha()",
		"s.isalnum()",
		"sp.isspace()",
		"s.isupper()",
		"s.islower()",
		"s.removeprefix(s)",
		"s.removesuffix(s)",
		"s.partition('b')",
		"s.rpartition(tail)",
		"s[1]",
		"s[-1:]",
		"s[::2]",
		"s < t",
		"s == t",
		"s >= t",
		"s != t",
		"'b' in s",
		"t in d",
		"d == c",
		"d[t]",
		"d.get(s)",
		"l == m",
		"l < m",
		"7 in l",
		"l.count(7)",
		"l.index(7) if 7 in l",
		"l[::100000]",
		"s | length",
		"s | trim('a')",
		"sp | trim",
		"s | upper",
		"s | lower",
		"s | title",
		"s | capitalize",
		"s | replace('b', '')",
		"e | join",
		"s | list",
		"s | first",
		"s | last",
		"l | map('abs') | list",
		"l | select | list",
		"l | reject('eq', 0) | list",
		"l | sum",
		"l | min",
		"l | max",
		"l | sort",
		"l | unique",
		"l | reverse | list",
		"s | reverse",
		"sp | int",
		"sp | float",
		"s | escape",
		"s | indent",
		"s | tojson",
		"l | tojson",
		"l | string",
		"s | format",
		"d | dictsort",
		"d | items | list",
		"d | tojson",
		"[s, t] | sort",
		"[s, t] | max",
		"[s, t] | unique",
		"s is lower",
		"s is upper",
		"s is eq t",
		"s is lt t",
		"s is sameas t",
		"7 is in l",
		"'b' is in s",
		"s is ge t",
		"s % 1",
		"s ~ t",
		"s + t",
		"l + m",
		"l * 2",
	};

	(void)state;
	const size_t step = getenv("LLMC_CHECK_ALL") ? 1 : 4; /* each takes some 0.2 s */
	for (size_t i = 0; i < sizeof work / sizeof *work; i += step) {
		char text[1200];
		snprintf(
		    text, sizeof text,
		    "{%% set s = 'a' * 3000000 %%}{%% set t = 'a' * 2999999 ~ 'b' %%}"
		    "{%% set sp = ' ' * 1000000 %%}{%% set tail = 'a' * 1000000 ~ 'b' %%}"
		    "{%% set l = [0] * 300000 %%}{%% set m = [0] * 300000 %%}"
		    "{%% set e = [''] * 300000 %%}"
		    "{%% set d = {t: 1, s: [0] * 100000} %%}{%% set c = {t: 1, s: [0] * 100000} %%}"
		    "{%% for i in range(100000) %%}{%% for k in range(100000) %%}"
		    "{%% if %s %%}{%% endif %%}{%% endfor %%}{%% endfor %%}",
		    work[i]);
		refused(text, "the template takes more than");
	}
}

static void
greedy(void **state)
{
	(void)state;
	refused("{{ 'x' * 9999999999 }}", "memory");
	refused("{{ [1] * 9999999999 }}", "");
	refused("{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s "
	        "= ns.s ~ ns.s %}{% endfor %}",
	        "memory");
	refused("{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = "
	        "ns.s.replace('a', ns.s) %}{% endfor %}",
	        "memory");
	refused("{{ '%999999999d' | format(1) }}", "");
	refused("{{ 'a' | indent(99999) | length ~ ('b' * 300000000) }}", "memory");
}

static void
deep(void **state)
{
	(void)state;
	refused_repeated("{{ ", "(", 100000, "1", "nested deeper");
	refused_repeated("{{ ", "[", 100000, "", "nested deeper");
	refused_repeated("{{ ", "- ", 100000, "1 }}", "nested deeper");
	refused_repeated("{{ ", "not ", 100000, "1 }}", "nested deeper");
	refused_repeated("{{ a", ".b", 100000, " }}", "nested deeper");
	refused_repeated("{{ a", "[0]", 100000, " }}", "nested deeper");
	refused_repeated("{{ a", "()", 100000, " }}", "nested deeper");
	refused_repeated("{{ 1", " + 1", 100000, " }}", "in a row");
	refused_repeated("{{ 1", "|abs", 100000, " }}", "in a row");
	refused_repeated("{{ 1", " if 1", 100000, " }}", "in a row");
	refused_repeated("{{ 1", " if 1 else 1", 100000, " }}", "nested deeper");
	refused_repeated("{{ 1", " < 2", 100000, " }}", "in a row");
	refused_repeated("", "{% if 1 %}", 100000, "", "nested deeper");
	refused_repeated("", "{% for x in y %}", 100000, "", "nested deeper");
	refused_repeated("{% for ", "(", 100000, "a", "nested deeper");
	refused_repeated("{% set x ", "| upper", 100000, " %}{% endset %}", "in a row");
}

static void
wrong(void **state)
{
	(void)state;
	refused("{{ 1", "has no end");
	refused("{% if 1 %}", "has no end");
	refused("{# x", "has no end");
	refused("{% raw %}", "has no");
	refused("{{ 'x }}", "has no end");
	refused("{{ }}", "an expression was expected");
	refused("{{ 1 2 }}", "expected");
	refused("{{ ) }}", "unexpected");
	refused("{{ [1) }}", "unexpected");
	refused("{% nonsense %}", "unknown tag `nonsense`");
	refused("{% include 'x' %}", "unknown tag `include`");
	refused("\n\n{{ missing.x }}", "line 3: 'missing' is undefined");
	refused("{{ missing() }}", "'missing' is undefined");
	refused("{{ 1 | nofilter }}", "no filter named 'nofilter'");
	refused("{{ 1 is notest }}", "no test named 'notest'");
	refused("{{ 1 + 'a' }}", "unsupported operand types");
	refused("{{ 1 / 0 }}", "division by zero");
	refused("{{ 1 % 0 }}", "division by zero");
	refused("{{ 9223372036854775807 + 1 }}", "64 bits");
	refused("{{ 99999999999999999999 }}", "too large");
	refused("{{ [1] < 2 }}", "no order");
	refused("{{ none | length }}", "has no len()");
	refused("{% for x in 5 %}{% endfor %}", "not iterable");
	refused("{% for a, b in [1] %}{% endfor %}", "not iterable");
	refused("{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names");
	refused("{% break %}", "outside a loop");
	refused("{% set x.y = 1 %}", "non-namespace");
	refused("{% set true = 1 %}", "cannot assign");
	refused("{{ [].append(1) }}", "may not");
	refused("{{ {}.update({}) }}", "may not");
	refused("{{ {[]: 1} }}", "unhashable");
	refused("{{ raise_exception('as the template says') }}", "as the template says");
	refused("{{ x | tojson }}", "not JSON serializable");
	refused("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "not more than 1");
	refused("{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "no keyword argument 'b'");
	refused("{{ f(*x) }}", "not supported");
	refused("{% for x in y recursive %}{% endfor %}", "not supported");
	refused("{{ '\\ud800' }}", "escape");
	refused("{{ \x01 }}", "unexpected character");
}

static void
right(void **state)
{
	(void)state;
	gives("", NULL, "");
	gives("\n", NULL, "");
	gives("plain \xF0\x9F\xA6\x99", NULL, "plain \xF0\x9F\xA6\x99");
	gives("\xff{{ 'a\x80' | length }}", NULL,
	      "\xEF\xBF\xBD"
	      "2"); /* a client's bytes may not be UTF-8 */
	gives("{{ x.y[1] | length }}", "{\"x\":{\"y\":[1,\"\\u0000\\u00e9\"]}}", "2");
	gives("{{ a }}{% set a = 2 %}{{ a }}", "{\"a\":1}", "12");
	gives("{% set x %}a{% endset %}{{ x ~ x }}", NULL, "aa");
	gives("{{ (9223372036854775807 // -1) ~ (-9223372036854775807 - 1) % -1 }}", NULL,
	      "-92233720368547758070");
	gives("{{ [3, 1, 2] | sort | join }}{{ 'b' 'c' }}", NULL, "123bc");
	gives("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
	      NULL, "02");
}

static void
time_is_a_format(void **state)
{
	char *out;
	llmc_error err;

	(void)state;
	assert_int_equal(render("{{ strftime_now('%%|%Y') }}", NULL, &out, &err), LLMC_OK);
	assert_int_equal(strlen(out), 6);
	assert_memory_equal(out, "%|2", 3);
	free(out);
	refused("{{ strftime_now(5) }}", "a string is needed");
}

static void
variables(void **state)
{
	char *out;
	llmc_error err;

	(void)state;
	assert_int_equal(render("x", "{\"a\":", &out, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "line 1"));
}

static void
rendering_ends_at_the_time_limit(void **state)
{
	static const char loop[] = "{% for i in range(99999) %}{{ i }}{% endfor %}";
	char *out;
	llmc_error err;

	(void)state;
	deadline_set(clock_now());
	assert_int_equal(render(loop, NULL, &out, &err), LLMC_E_CANCELLED);
	assert_non_null(strstr(err.text, "time limit"));
	deadline_set(clock_now() + 1e6);
	assert_int_equal(render(loop, NULL, &out, &err), LLMC_OK);
	deadline_set(0);
	free(out);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(endless),
		cmocka_unit_test(greedy),
		cmocka_unit_test(operations_on_long_values),
		cmocka_unit_test(deep),
		cmocka_unit_test(wrong),
		cmocka_unit_test(right),
		cmocka_unit_test(time_is_a_format),
		cmocka_unit_test(variables),
		cmocka_unit_test(rendering_ends_at_the_time_limit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
