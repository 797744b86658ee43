#include "runtime/observer.h"

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <mutex>

#include "runtime/checks.h"
#include "runtime/engine.h"
#include "runtime/op_traits.h"
#include "runtime/poison.h"
#include "runtime/quiet.h"

namespace fsdp::detail {

namespace {

// An operator in flight that has an input of ours.
struct OpContext final : at::ObserverContext {
  ~OpContext() override {
    for (Unit* unit : pinned) --unit->pins;
    for (const Lent& one : lent)  // an operator inside may have gathered the unit: then the loan is its own
      if (one.region->unit->state != UnitState::gathered)
        one.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(one.own);
  }
  struct Lent {
    at::Tensor tensor;
    c10::Storage own;
    const UnitRegion* region;
  };
  void lend(const at::Tensor& tensor, const UnitRegion& region) {
    lent.push_back({tensor, tensor.storage(), &region});
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(region.storage);
  }
  std::vector<Lent> lent;
  c10::SmallVector<Unit*, 4> pinned;
  Exchanged exchanged;
};

// fn(argument index, tensor) for every tensor among the inputs. A list is one of tensors when its first
// element is, or is none, as in a list of optional tensors.
template <class Fn>
void for_each_tensor(const at::RecordFunction& op, Fn fn) {
  const auto inputs = op.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const c10::IValue& value = inputs[i];
    if (value.isTensor()) {
      fn(i, value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor())
          fn(i, element.toTensor());
        else if (!element.isNone())
          break;
      }
    }
  }
}

std::string name_at(const UnitRegion& region, int64_t offset) {
  std::string name = region.unit->name;
  for (const auto& param : region.unit->params)
    if (&param->region() == &region && param->place.offset <= offset) name = param->names.front();
  return name;
}

// What is wrong with an operator that has `tensor` as its argument `i`; empty: nothing.
std::string objection(const OpTraits& traits, size_t i, const at::Tensor& tensor, const Tag& tag) {
  const UnitRegion* region = tag.region;
  if (region == nullptr) return tag.kind == TagKind::parameter ? dropped_message() : "";
  if (tag.kind == TagKind::parameter) {
    const auto name = [&] { return name_at(*region, tensor.storage_offset()); };
    if (!region->unit->engine->may_read()) return sharded_message(name());
    if (traits.writes_argument(i))
      return "fsdp: parameter '" + name() +
             "' is written inside forward; the write would be lost, since only the shard lasts. Write in "
             "model.full_params(true), or put the module on the ignored list.";
  }
  if (tag.kind == TagKind::gradient && region->unit->layout.ranks > 1) {
    if (traits.norm)
      return "fsdp: a norm over gradient slices is that of this rank only; use model.clip_grad_norm_()";
    if (traits.joins)
      return "fsdp: whole-vector optimizers such as LBFGS see only this rank's slices; use an elementwise "
             "one "
             "(SGD, Adam, AdamW, RMSprop, Adagrad)";
  }
  return "";
}

// Makes the operator throw `message`.
void refuse(OpContext& context, const at::RecordFunction& op, const std::string& message) {
  for_each_tensor(op, [&](size_t, const at::Tensor& tensor) {
    if (tag_of(tensor) != nullptr)
      context.exchanged.exchange(tensor,
                                 make_poison(nullptr, tensor.device(), tensor.storage().nbytes(), message));
  });
}

void keep_as_cause(Engine* engine, const std::string& message) {
  if (engine != nullptr)
    engine->fail(
        std::make_exception_ptr(c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message)));
}

// A view of a released parameter must be a view of what will be gathered, not of the poison; and a tensor
// that took the poison along (data(), a copy of the handle) reads what was gathered.
void lend_storages(std::unique_ptr<OpContext>& context, const at::RecordFunction& op) {
  for_each_tensor(op, [&](size_t, const at::Tensor& tensor) {
    const Tag* tag = tag_of(tensor);
    if (tag == nullptr || tag->kind != TagKind::parameter || tag->region == nullptr) return;
    if (tensor.storage().unsafeGetStorageImpl() == tag->region->storage.unsafeGetStorageImpl()) return;
    if (!context) context = std::make_unique<OpContext>();
    context->lend(tensor, *tag->region);
  });
}

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    return caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "unknown error";
  }
}

// A unit that an operator around this one holds is there already.
bool gather_inputs(OpContext& context, const at::RecordFunction& op,
                   const c10::SmallVector<Unit*, 4>& units) {
  c10::SmallVector<Unit*, 4> missing;
  for (Unit* unit : units) {
    if (unit->pins++ == 0) missing.push_back(unit);
    context.pinned.push_back(unit);
  }
  for (Unit* unit : missing) {
    try {
      unit->engine->use(*unit);
    } catch (...) {
      unit->engine->fail(std::current_exception());
      refuse(context, op, what_of(std::current_exception()));
      return false;
    }
  }
  return true;
}

std::unique_ptr<at::ObserverContext> on_our_input(const at::RecordFunction& op) {
  const OpTraits& traits = traits_of(op);
  std::unique_ptr<OpContext> context;
  if (traits.view || traits.metadata) {
    lend_storages(context, op);
    return context;
  }
  context = std::make_unique<OpContext>();
  c10::SmallVector<Unit*, 4> units;
  std::string wrong;
  Engine* engine = nullptr;
  for_each_tensor(op, [&](size_t i, const at::Tensor& tensor) {
    const Tag* tag = tag_of(tensor);
    if (tag == nullptr) return;
    if (wrong.empty()) {
      wrong = objection(traits, i, tensor, *tag);
      if (!wrong.empty() && tag->region != nullptr) engine = tag->region->unit->engine;
    }
    if (tag->kind == TagKind::shard && tag->region != nullptr && traits.writes_argument(i))
      tag->region->unit->note_write();
    if (tag->kind == TagKind::parameter && tag->region != nullptr &&
        std::find(units.begin(), units.end(), tag->region->unit) == units.end())
      units.push_back(tag->region->unit);
  });
  if (!wrong.empty()) {
    keep_as_cause(engine, wrong);
    refuse(*context, op, wrong);
  } else {
    if (gather_inputs(*context, op, units)) lend_storages(context, op);
  }
  return context;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op) {
  if (Quiet::on()) return nullptr;
  bool ours = false;
  for_each_tensor(op, [&](size_t, const at::Tensor& tensor) { ours = ours || tag_of(tensor) != nullptr; });
  return ours ? on_our_input(op) : nullptr;
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {}

struct Installed {
  std::mutex mutex;
  int models = 0;
  at::CallbackHandle handle = 0;
};
Installed& installed() {
  static Installed one;
  return one;
}

}  // namespace

void install_observer() {
  Installed& observer = installed();
  const std::lock_guard lock(observer.mutex);
  if (observer.models++ > 0) return;
  observer.handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start, on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void remove_observer() {
  Installed& observer = installed();
  const std::lock_guard lock(observer.mutex);
  if (--observer.models == 0) at::removeCallback(observer.handle);
}

}  // namespace fsdp::detail
