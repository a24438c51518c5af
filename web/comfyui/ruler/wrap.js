/** Adding to what methods of the page's objects do. */

/** Call something before a method of an object. */
export function before(object, name, first) {
  const original = object[name];
  object[name] = function (...values) {
    first();
    return original.apply(this, values);
  };
}

/** Call something more after a method of an object, which it may lack, with the same arguments. */
export function after(object, name, then) {
  const original = object[name];
  object[name] = function (...values) {
    const result = original?.apply(this, values);
    then(...values);
    return result;
  };
}
