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

static bool
is_jinja(const char *text)
{
	return strstr(text, "{{") || strstr(text, "{%");
}

static llmc_status
read_source(const char *path, Strbuf *out, llmc_error *err)
{
	TRY(file_read(path, MAX_FILE, out, err));
	if (!out->failed && (!is_jinja(strbuf_str(out)) || memchr(out->data, 0, out->len)))
		return error_set(err, LLMC_E_INPUT,
		                 "%.200s is no Jinja template: it has %s. Name the file of a chat "
		                 "template.",
		                 path, is_jinja(strbuf_str(out)) ? "NUL bytes" : "no {{ or {%");
	return LLMC_OK;
}

/* A name means the library's template even if there is such a file or folder: "./chatml" is that
 * file. */
static llmc_status
find_source(const char *what, Strbuf *out, llmc_error *err)
{
	Strbuf path = { 0 }, names = { 0 };
	size_t n = 0;

	if (is_jinja(what)) {
		strbuf_puts(out, what);
		return LLMC_OK;
	}
	strbuf_printf(&path, "%s%s%s", FOLDER, what, SUFFIX);
	const char *own = path.failed ? NULL : embed_find(strbuf_str(&path), &n);
	strbuf_release(&path);
	if (own) {
		strbuf_add(out, own, n);
		return LLMC_OK;
	}
	if (file_exists(what) && !file_is_dir(what))
		return read_source(what, out, err);
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

	if (!what)
		return LLMC_OK;
	if (!t)
		return error_set(err, LLMC_E_INPUT,
		                 "the model has no tokenizer, so it cannot have a chat template");
	if (setjmp(t->arena.oom)) {
		strbuf_release(&source);
		return error_set(err, LLMC_E_MEMORY, "chat template: out of memory");
	}
	const llmc_status found = find_source(what, &source, err);
	if (found != LLMC_OK) {
		strbuf_release(&source);
		return found;
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
