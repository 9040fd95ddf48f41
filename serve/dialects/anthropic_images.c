/* Image blocks of Anthropic's messages and tool results. */
#include <string.h>

#include "serve/dialects/anthropic.h"
#include "serve/dialects/chat_images.h"

bool
anthropic_is(const json_t *block, const char *type)
{
	const char *t = json_string_value(json_object_get(block, "type"));

	return t && !strcmp(t, type);
}

json_t *
anthropic_image(const json_t *block, const char *where, size_t at, Problem *p)
{
	static const char *const types[] = { "image/jpeg", "image/png", "image/gif", "image/webp" };
	const json_t *source = json_object_get(block, "source"),
	             *data = json_object_get(source, "data"),
	             *media = json_object_get(source, "media_type"),
	             *url = json_object_get(source, "url");
	const char *own = json_string_value(json_object_get(block, "where"));
	char key[96];
	bool known = false;

	snprintf(key, sizeof key, "%s.%zu", where, at);
	if (own) /* the image was in a tool_result */
		snprintf(key, sizeof key, "%s", own);
	if (anthropic_is(source, "url") && json_is_string(url))
		return image_part_url(url, NULL, key);
	for (size_t i = 0; i < sizeof types / sizeof *types && json_is_string(media); i++)
		known |= !strcmp(json_string_value(media), types[i]);
	if (!anthropic_is(source, "base64") || !json_is_string(data))
		problem(
		    p, 400, key,
		    "%s.source: an image has {\"type\": \"base64\", \"media_type\", \"data\"} or "
		    "{\"type\": \"url\", \"url\"}.",
		    key);
	else if (!known)
		problem(p, 400, key,
		        "%s.source.media_type: expected 'image/jpeg', 'image/png', 'image/gif' or "
		        "'image/webp'.",
		        key);
	return p->status ? NULL : image_part_base64(data, key);
}

json_t *
anthropic_result_text(const json_t *content, size_t at, const char *where, json_t *rest)
{
	json_t *text = json_array(), *part;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		if (!anthropic_is(part, "image")) {
			json_array_append(text, part);
			continue;
		}
		char key[96];
		json_t *image = json_copy(part);
		snprintf(key, sizeof key, "%s.%zu.content.%zu", where, at, i);
		json_object_set_new(image, "where", json_string(key));
		json_array_append_new(rest, image);
	}
	return text;
}
