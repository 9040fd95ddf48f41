/* Lists of token ids in the bodies of requests. */
#include "serve/dialects/openai.h"

#include <stdlib.h>

bool
openai_ids(const Generation *g, const json_t *o, const char *key, size_t most, bool empty,
           int32_t **out, int32_t *n, Problem *p)
{
	const json_t *v = json_object_get(o, key);
	const int32_t vocab = g->model->back.info.vocab;
	size_t size = json_array_size(v);

	if (!v || json_is_null(v) || (empty && json_is_array(v) && size == 0))
		return true;
	if (!json_is_array(v))
		return problem(p, 400, key,
		               "Invalid type for '%s': expected an array of integers, but got %s "
		               "instead.",
		               key, json_type_name(v));
	if (!size)
		return problem(p, 400, key, "Invalid '%s': expected at least one token id.", key);
	if (size > most)
		return problem(p, 400, key, "Invalid '%s': at most %zu are allowed, got %zu.", key,
		               most, size);
	*out = calloc(size, sizeof **out);
	if (!*out)
		return problem_memory(p);
	for (size_t i = 0; i < size; i++) {
		const json_t *one = json_array_get(v, i);
		if (!json_is_integer(one) || json_integer_value(one) < 0 ||
		    json_integer_value(one) >= vocab)
			return problem(p, 400, key,
			               "Invalid '%s[%zu]': expected an id from 0 to %d.", key, i,
			               vocab - 1);
		(*out)[i] = (int32_t)json_integer_value(one);
	}
	*n = (int32_t)size;
	return true;
}
