/* Layer selectors: all, none, 3, "0-3,8", [0, 2, "4-7"], {from, every, at, except, not_every}. */
#ifndef LLMC_COMPILER_SPEC_LAYER_LIST_H
#define LLMC_COMPILER_SPEC_LAYER_LIST_H

#include "formats/yaml.h"

/* Set out[n_layers] to 1 for each selected layer. Returns false if there are errors, which name the
 * key `what`. */
bool selector_read(const Node *n, const char *what, int n_layers, uint8_t *out, Diag *d);
/* Write a selector: "all", "none" or "0-3,8". A list of ranges is quoted. */
char *selector_text(const uint8_t *layers, int n_layers, Arena *a);

#endif
