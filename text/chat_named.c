/* Chat templates that replace the model's own: files, those of the library by name, and sources. */
#include <string.h>

#include "base/embed.h"
#include "base/file.h"
#include "text/text.h"

#define FOLDER "configs/chat_templates/"
#define SUFFIX ".jinja"
enum { MAX_FILE = 1 << 20 };

/* Append the names of the library's templates. */
static void
put_names(Strbuf *b)
{
	const char *path;
	const size_t n = strlen(FOLDER);

	for (size_t i = 0; (path = embed_path(i)) != NULL; i++)
		if (!strncmp(path, FOLDER, n))
			strbuf_printf(b, "%s%.*s", b->len ? ", " : "",
			              (int)(strlen(path + n) - strlen(SUFFIX)), path + n);
}

static llmc_status
find_source(const char *what, Strbuf *out, llmc_error *err)
{
	Strbuf path = { 0 }, names = { 0 };
	size_t n = 0;

	if (strstr(what, "{{") || strstr(what, "{%")) {
		strbuf_puts(out, what);
		return LLMC_OK;
	}
	if (file_exists(what))
		return file_read(what, MAX_FILE, out, err);
	strbuf_printf(&path, "%s%s%s", FOLDER, what, SUFFIX);
	const char *own = path.failed ? NULL : embed_find(strbuf_str(&path), &n);
	strbuf_release(&path);
	if (own) {
		strbuf_add(out, own, n);
		return LLMC_OK;
	}
	put_names(&names);
	llmc_status s = error_set(
	    err, LLMC_E_INPUT,
	    "chat template '%.200s': no such file, and not the text of a template. Names of "
	    "templates: %s",
	    what, strbuf_str(&names));
	strbuf_release(&names);
	return s;
}

/* May jump to the arena's oom. */
static void
take_source(llmc_tokenizer *t, const Strbuf *source)
{
	t->chat = arena_strndup(&t->arena, strbuf_str(source), source->len);
	t->chat_tools = t->response = NULL;
}

llmc_status
tokenizer_set_template(llmc_tokenizer *t, const char *what, llmc_error *err)
{
	Strbuf source = { 0 };
	llmc_error why = { 0 };

	if (setjmp(t->arena.oom)) {
		strbuf_release(&source);
		return error_set(err, LLMC_E_MEMORY, "chat template: out of memory");
	}
	if (find_source(what, &source, err) != LLMC_OK) {
		strbuf_release(&source);
		return err->code;
	}
	if (source.failed)
		longjmp(t->arena.oom, 1);
	if (text_render_vars(strbuf_str(&source), source.len, "chat template", NULL, NULL, &why) ==
	    LLMC_OK)
		take_source(t, &source);
	strbuf_release(&source);
	return !why.code ? LLMC_OK
	                 : error_set(err, why.code, "%.200s: %s",
	                             strchr(what, '{') ? "the text" : what, why.text);
}
