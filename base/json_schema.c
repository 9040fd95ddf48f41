#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/json_schema.h"

#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { MAX_MATCH = 100000 };

/* ---- types ---- */

const char *const json_schema_additional[3] = { "auto", "closed", "open" };

int
json_schema_additional_of(const char *name)
{
	for (int i = 0; i < 3; i++)
		if (!strcmp(name, json_schema_additional[i]))
			return i;
	return -1;
}

int
json_schema_type(const json_t *name)
{
	static const char *const names[] = { "null",   "boolean", "integer", "number",
		                             "string", "array",   "object" };

	for (int i = 0; json_is_string(name) && i < 7; i++)
		if (!strcmp(json_string_value(name), names[i]))
			return 1 << i;
	return 0;
}

int
json_schema_type_of(const json_t *v)
{
	const char *digits = json_kept_digits(v);

	if (digits)
		return digits[strcspn(digits, ".eE")] ? T_NUMBER : T_INTEGER | T_NUMBER;
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return T_OBJECT;
	case JSON_ARRAY:
		return T_ARRAY;
	case JSON_STRING:
		return T_STRING;
	case JSON_INTEGER:
		return T_INTEGER | T_NUMBER;
	case JSON_REAL:
		return json_real_value(v) == trunc(json_real_value(v)) ? T_INTEGER | T_NUMBER
		                                                       : T_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return T_BOOLEAN;
	case JSON_NULL:
		break;
	}
	return T_NULL;
}

int
json_schema_implied_types(const json_t *schema)
{
	static const struct {
		const char *key;
		int type;
	} keys[] = {
		{ "properties", T_OBJECT },
		{ "required", T_OBJECT },
		{ "additionalProperties", T_OBJECT },
		{ "patternProperties", T_OBJECT },
		{ "minProperties", T_OBJECT },
		{ "maxProperties", T_OBJECT },
		{ "propertyNames", T_OBJECT },
		{ "items", T_ARRAY },
		{ "prefixItems", T_ARRAY },
		{ "minItems", T_ARRAY },
		{ "maxItems", T_ARRAY },
		{ "uniqueItems", T_ARRAY },
		{ "contains", T_ARRAY },
		{ "pattern", T_STRING },
		{ "format", T_STRING },
		{ "minLength", T_STRING },
		{ "maxLength", T_STRING },
		{ "minimum", T_NUMBER },
		{ "maximum", T_NUMBER },
		{ "exclusiveMinimum", T_NUMBER },
		{ "exclusiveMaximum", T_NUMBER },
		{ "multipleOf", T_NUMBER },
	};
	int types = 0;

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (json_object_get(schema, keys[i].key))
			types |= keys[i].type;
	return types ? types : T_ALL;
}

/* ---- names ---- */

NameMatch
json_schema_name_matches(const char *pattern, const char *name)
{
	int code = PCRE2_ERROR_NOMEMORY;
	PCRE2_SIZE at;
	int error;
	pcre2_code *re =
	    pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
	                  PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX, &error, &at, NULL);
	pcre2_match_data *m = re ? pcre2_match_data_create(1, NULL) : NULL;
	pcre2_match_context *limits = m ? pcre2_match_context_create(NULL) : NULL;

	if (limits) {
		pcre2_set_match_limit(limits, MAX_MATCH);
		code = pcre2_match(re, (PCRE2_SPTR)name, strlen(name), 0, 0, m, limits);
	}
	pcre2_match_context_free(limits);
	pcre2_match_data_free(m);
	pcre2_code_free(re);
	return !re                            ? NAME_UNDECIDED
	       : code >= 0                    ? NAME_MATCHES
	       : code == PCRE2_ERROR_NOMATCH  ? NAME_DIFFERS
	       : code == PCRE2_ERROR_NOMEMORY ? NAME_NO_MEMORY
	                                      : NAME_UNDECIDED;
}
