/** Extending methods of the page's objects. */

/** Call a function before a method of an object. */
export function before(object, name, first) {
  const original = object[name];
  object[name] = function (...values) {
    first();
    return original.apply(this, values);
  };
}

/** Call a function after a method of an object, which may not exist, with the same arguments. */
export function after(object, name, then) {
  const original = object[name];
  object[name] = function (...values) {
    const result = original?.apply(this, values);
    then(...values);
    return result;
  };
}
