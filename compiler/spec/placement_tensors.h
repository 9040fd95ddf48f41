/* placement.tensors: rules of llama.cpp's --override-tensor. */
#ifndef LLMC_COMPILER_SPEC_PLACEMENT_TENSORS_H
#define LLMC_COMPILER_SPEC_PLACEMENT_TENSORS_H

#include "compiler/spec/spec_table.h"

/* Add the layers and routed experts ([n_layers] each) and the embedding that placement.tensors
 * places on the CPU. Errors go to t->d: a bad rule, or a part that cannot be divided */
void spec_place_tensors(const SpecTable *t, Spec *s, uint8_t *layer_in, uint8_t *experts_in);

#endif
