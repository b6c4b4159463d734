import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** A test: test_jms.py finds these by their text, and reports each under the name of its method. */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
@interface Law {}
